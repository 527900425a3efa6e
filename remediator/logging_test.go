package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/pitcrew-dev/pitcrew/e2e/components"
)

func parseLogFlags(args ...string) (o logOptions, err error) {
	f := flag.NewFlagSet("remediator", flag.ContinueOnError)
	f.SetOutput(io.Discard)
	o.addFlags(f)
	return o, f.Parse(args)
}

func TestTheLogHasTheLevelsThatTheFlagAsksFor(t *testing.T) {
	for level, want := range map[string]string{
		"":      "INFO info, ERROR error",
		"debug": "DEBUG detail, DEBUG more detail, INFO info, ERROR error",
		"info":  "INFO info, ERROR error",
		"warn":  "ERROR error",
		"error": "ERROR error",
	} {
		for _, format := range []string{"", "text", "json"} {
			var args []string
			if level != "" {
				args = append(args, "-log-level="+level)
			}
			if format != "" {
				args = append(args, "-log-format", format)
			}
			o, err := parseLogFlags(args...)
			if err != nil {
				t.Fatal(err)
			}
			var log bytes.Buffer
			logger := o.logger(&log)
			logger.V(1).Info("detail")
			logger.V(4).Info("more detail")
			logger.Info("info", "level", "of another kind")
			logger.Error(errors.New("broken"), "error")
			var got []string
			for line := range strings.Lines(log.String()) {
				got = append(got, levelAndMessage(t, format, line))
			}
			if got := strings.Join(got, ", "); got != want {
				t.Errorf("%q: %s, want %s", args, got, want)
			}
		}
	}
}

func levelAndMessage(t *testing.T, format, line string) string {
	t.Helper()
	if format != "json" {
		_, rest, _ := strings.Cut(line, " level=")
		level, rest, _ := strings.Cut(rest, " msg=")
		if quoted, ok := strings.CutPrefix(rest, `"`); ok {
			message, _, _ := strings.Cut(quoted, `"`)
			return level + " " + message
		}
		return level + " " + strings.Fields(rest)[0]
	}
	var entry struct{ Msg string }
	if err := json.Unmarshal([]byte(line), &entry); err != nil {
		t.Fatal(line, err)
	}
	// An attribute of the same name comes after it and would win in a struct.
	_, rest, _ := strings.Cut(line, `"level":"`)
	level, _, _ := strings.Cut(rest, `"`)
	return level + " " + entry.Msg
}

func TestOtherLevelsAndFormatsAreRefused(t *testing.T) {
	for flag, want := range map[string]string{
		"-log-level=verbose": `"verbose" is not debug, info, warn or error`,
		"-log-level=info+2":  `"info+2" is not debug, info, warn or error`,
		"-log-level=":        `"" is not debug, info, warn or error`,
		"-log-format=logfmt": `"logfmt" is not text or json`,
	} {
		if _, err := parseLogFlags(flag); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", flag, err)
		}
	}
}

// TestTheBuiltRemediatorLogsInJSON starts the program with an API server that answers discovery and two lists only, so
// that both controller-runtime and client-go, which logs by klog, write log lines.
func TestTheBuiltRemediatorLogsInJSON(t *testing.T) {
	root, err := components.Root()
	if err != nil {
		t.Fatal(err)
	}
	if err := components.BuildOurs(t.Context(), root, "./remediator"); err != nil {
		t.Fatal(err)
	}
	answers := map[string]string{
		"/api":                                  `{"kind":"APIVersions","versions":["v1"]}`,
		"/apis":                                 `{"kind":"APIGroupList","apiVersion":"v1","groups":[]}`,
		"/api/v1":                               `{"kind":"APIResourceList","groupVersion":"v1","resources":[{"name":"nodes","kind":"Node","verbs":["list"]},{"name":"configmaps","kind":"ConfigMap","namespaced":true,"verbs":["list"]}]}`,
		"/api/v1/nodes":                         `{"kind":"NodeList","apiVersion":"v1","metadata":{"resourceVersion":"1"},"items":[]}`,
		"/api/v1/namespaces/pitcrew/configmaps": `{"kind":"ConfigMapList","apiVersion":"v1","metadata":{"resourceVersion":"1"},"items":[]}`,
	}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		answer, ok := answers[r.URL.Path]
		if !ok {
			http.NotFound(w, r)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("Warning", `299 - "client-go logs this by klog"`)
		fmt.Fprint(w, answer)
	}))
	defer server.Close()
	kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
	if err := os.WriteFile(kubeconfig, []byte(`{"apiVersion": "v1", "kind": "Config", "current-context": "test",
		"contexts": [{"name": "test", "context": {"cluster": "test"}}], "clusters": [{"name": "test", "cluster": {"server": "`+server.URL+`"}}]}`), 0o644); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	cmd := exec.CommandContext(ctx, filepath.Join(root, "bin", "remediator"), "-log-level=debug", "-log-format=json",
		"-policy", filepath.Join(root, "manifests", "policy.yaml"), "-kubeconfig", kubeconfig, "-metrics-bind-address=0", "-health-probe-bind-address=0")
	log, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{}
	for lines := bufio.NewScanner(log); lines.Scan(); {
		var entry struct{ Time, Level, Msg, Logger string }
		if err := json.Unmarshal(lines.Bytes(), &entry); err != nil || entry.Time == "" || entry.Msg == "" {
			t.Errorf("%v: %s", err, lines.Text())
		}
		seen[entry.Level], seen[entry.Logger], seen[entry.Msg] = true, true, true
		if seen["DEBUG"] && seen["INFO"] && seen["ERROR"] && seen["leaderelection"] && seen["Warning: client-go logs this by klog"] {
			cancel()
		}
	}
	if err := cmd.Wait(); ctx.Err() == nil {
		t.Errorf("it ended by itself: %v", err)
	}
}
