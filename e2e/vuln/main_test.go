package main

import (
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Each module below imports a package in which one function is vulnerable according to the database in testdata.
func TestOnlyACalledVulnerabilityFails(t *testing.T) {
	db, err := filepath.Abs("testdata/db")
	if err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		name, call    string
		fails         bool
		prints, never string
	}{
		{"called", `url.Parse("/")`, true, "Your code is affected by 1 vulnerability", "panic"},
		{"not called", `url.ParseQuery("a=b")`, false, "", "cannot be reached"},
		{"does not compile", `url.Nothing()`, true, "Nothing", "cannot be reached"},
	} {
		t.Run(test.name, func(t *testing.T) {
			var out strings.Builder
			err := check(t.Context(), &out, "file://"+db, module(t, test.call), ".")
			if (err != nil) != test.fails || !strings.Contains(out.String(), test.prints) || strings.Contains(out.String(), test.never) {
				t.Errorf("%v\n%s", err, out.String())
			}
		})
	}
}

func TestAnUnreachableDatabaseIsReportedAndDoesNotFail(t *testing.T) {
	blocked := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		http.Error(w, "not through this proxy", http.StatusForbidden)
	}))
	defer blocked.Close()
	const gone = "http://127.0.0.1:1" // no program gets that port
	for url, why := range map[string]string{blocked.URL: "403 Forbidden", gone: "connection refused"} {
		var out strings.Builder
		err := check(t.Context(), &out, url, module(t, `url.Parse("/")`), ".")
		if want := "the vulnerability database cannot be reached, nothing was checked"; err != nil || !strings.Contains(out.String(), want) || !strings.Contains(out.String(), why) {
			t.Errorf("%s: %v\n%s", url, err, out.String())
		}
	}
}

func module(t *testing.T, call string) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range map[string]string{
		"go.mod":  "module example.com/program\n\ngo 1.26.0\n",
		"main.go": "package main\n\nimport \"net/url\"\n\nfunc main() {\n\t_, err := " + call + "\n\tpanic(err)\n}\n",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}
