package chart_test

import (
	"bytes"
	"cmp"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/pitcrew-dev/pitcrew/e2e/components"
	"github.com/pitcrew-dev/pitcrew/internal/conditions"
)

// A chart cannot read files outside of itself. It has copies of these, by their folder below files/; several are separated by a blank.
var copies = map[string]string{
	"monitors":                       "../../monitors/*.json ../../monitors/modelarts/*.json",
	"alerts-without-remediator":      "../alerts/without-remediator/*.yaml",
	"dashboards":                     "../dashboards/*.json",
	"alerts":                         "../alerts/*.yaml",
	"recording":                      "../recording/*.yaml",
	"policy.yaml":                    "../policy.yaml",
	"admission.yaml":                 "../preflight/admission.yaml",
	"preflight-inject.yaml":          "../preflight/inject/policy.yaml",
	"roles/preflight-inject.yaml":    "../preflight/inject/namespace/role.yaml",
	"admission-self.yaml":            "../remediator/admission-self.yaml",
	"admission-records.yaml":         "../remediator/admission.yaml",
	"admission-repair.yaml":          "../repair/admission.yaml",
	"roles/remediator.yaml":          "../remediator/rbac.yaml",
	"roles/devices.yaml":             "../remediator/devices.yaml",
	"roles/repair.yaml":              "../repair/rbac.yaml",
	"roles/progress.yaml":            "../progress/rbac.yaml",
	"roles/preflight-namespace.yaml": "../preflight/namespace/roles.yaml",
}

func TestGeneratedCopies(t *testing.T) {
	for to, from := range copies {
		var sources []string
		for pattern := range strings.FieldsSeq(from) {
			found, err := filepath.Glob(pattern)
			if err != nil || len(found) == 0 {
				t.Errorf("%s: nothing there, %v", pattern, err)
			}
			sources = append(sources, found...)
		}
		var names []string
		for _, source := range sources {
			text, err := os.ReadFile(source)
			if err != nil {
				t.Fatal(err)
			}
			path := filepath.Join("files", to)
			if strings.Contains(from, "*") {
				path = filepath.Join(path, filepath.Base(source))
			}
			names = append(names, path)
			written(t, path, text)
		}
		if !strings.Contains(from, "*") {
			continue
		}
		present, err := filepath.Glob(filepath.Join("files", to, "*"))
		if err != nil {
			t.Fatal(err)
		}
		for _, path := range present {
			if slices.Contains(names, path) {
				continue
			}
			if *update {
				if err := os.Remove(path); err != nil {
					t.Fatal(err)
				}
				continue
			}
			t.Errorf("%s has no original %s; run `make generate`", path, from)
		}
	}
}

// written tests that a file is as it is generated, or writes it.
func written(t *testing.T, path string, want []byte) {
	t.Helper()
	if *update {
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, want, 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if got, err := os.ReadFile(path); err != nil || !bytes.Equal(got, want) {
		t.Errorf("%s is out of date (%v); run `make generate`", path, err)
	}
}

// known is files/checks.yaml.
type known struct {
	Needs  map[string]any `json:"needs"`
	Checks map[string]struct {
		Needs []string `json:"needs"`
	} `json:"checks"`
	Presets map[string]struct {
		Checks []string `json:"checks"`
	} `json:"presets"`
}

func readKnown(t *testing.T) (k known) {
	t.Helper()
	text, err := os.ReadFile("files/checks.yaml")
	if err != nil {
		t.Fatal(err)
	}
	if err := yaml.Unmarshal(text, &k); err != nil {
		t.Fatal(err)
	}
	return k
}

// checkPlugins are the plugins of all conditions that the chart can deploy: Pitcrew's own, and those of ModelArts' node agent.
func checkPlugins(t *testing.T) map[string]string {
	t.Helper()
	plugins := map[string]string{}
	for _, c := range conditions.All {
		plugins[c.Type] = c.Plugin
	}
	others, err := filepath.Glob("../../monitors/modelarts/*.json")
	if err != nil || len(others) != 7 {
		t.Fatalf("monitors of ModelArts: %q, %v", others, err)
	}
	for _, path := range others {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		var monitor struct{ Source string }
		if err := json.Unmarshal(text, &monitor); err != nil {
			t.Fatal(err)
		}
		plugins[strings.TrimSuffix(filepath.Base(path), ".json")] = monitor.Source
	}
	return plugins
}

func TestTheChartKnowsEveryCheck(t *testing.T) {
	k := readKnown(t)
	plugins := checkPlugins(t)
	for condition := range plugins {
		check, ok := k.Checks[condition]
		if !ok {
			t.Errorf("files/checks.yaml: no %s", condition)
		}
		for _, need := range check.Needs {
			if k.Needs[need] == nil {
				t.Errorf("files/checks.yaml: %s needs %s, which nothing explains", condition, need)
			}
		}
	}
	if len(k.Checks) != len(plugins) {
		t.Errorf("files/checks.yaml has %d checks, there are %d", len(k.Checks), len(plugins))
	}
	for name, preset := range k.Presets {
		for _, check := range preset.Checks {
			if _, ok := k.Checks[check]; !ok {
				t.Errorf("files/checks.yaml: preset %s has an unknown check %s", name, check)
			}
		}
	}
}

// The schema lists the flags of each check's plugin. These flags are excluded: those that the chart itself sets or mounts, those that
// decide how NPD runs the plugin, and those for manual use.
var notForValues = regexp.MustCompile(`^(timeout|hold|every|healthy-every|state-dir|hung-after|snapshot|dump|clear|version|hardware|` +
	`sysfs|procfs|kmsg|root|dev|driver-root|chrony|dbus|systemd|pod-logs|mx-smi|npu-smi|hccn-tool|ibv-devinfo|pod-resources|dcgmi|` +
	`log|journal|journalctl|journal-dir|overrides|patterns|profiles|explain|gpus|list|` +
	`report|run|run-when-idle|interval|level|tests|force|idle-for)$`)

func TestGeneratedSchema(t *testing.T) {
	k := readKnown(t)
	text, err := os.ReadFile("values.schema.json")
	if err != nil {
		t.Fatal(err)
	}
	var schema map[string]any
	if err := json.Unmarshal(text, &schema); err != nil {
		t.Fatal(err)
	}
	definitions := schema["definitions"].(map[string]any)
	var presets []string
	for name := range k.Presets {
		presets = append(presets, name)
	}
	slices.Sort(presets)
	definitions["pool"].(map[string]any)["properties"].(map[string]any)["preset"] = map[string]any{"enum": presets}
	checks := map[string]any{}
	for condition, plugin := range checkPlugins(t) {
		checks[condition] = object(map[string]any{
			"enabled": map[string]any{"type": "boolean"},
			"args":    object(flags(t, plugin)),
		})
	}
	definitions["checks"] = object(checks)
	definitions["policy"] = policySchema(t)
	var want bytes.Buffer
	encoder := json.NewEncoder(&want)
	encoder.SetEscapeHTML(false)
	encoder.SetIndent("", "  ")
	if err := encoder.Encode(schema); err != nil {
		t.Fatal(err)
	}
	written(t, "values.schema.json", want.Bytes())
}

func object(properties map[string]any) map[string]any {
	return map[string]any{"type": "object", "additionalProperties": false, "properties": properties}
}

// flags returns the flags that a plugin prints with -h. A flag's text follows on a separate line, see flag.PrintDefaults.
func flags(t *testing.T, plugin string) map[string]any {
	t.Helper()
	if err := components.BuildOurs(t.Context(), root, "./plugins/"+plugin); err != nil {
		t.Fatal(err)
	}
	help, _ := exec.CommandContext(t.Context(), filepath.Join(root, "bin", plugin), "-h").CombinedOutput()
	all := map[string]any{}
	for _, match := range regexp.MustCompile(`(?m)^  -(\S+)(.*)\n    \t(.*)$`).FindAllStringSubmatch(string(help), -1) {
		name, kind, text := match[1], strings.TrimSpace(match[2]), match[3]
		if notForValues.MatchString(name) {
			continue
		}
		all[name] = map[string]any{"type": []string{"string", "number", "boolean"}, "description": cmp.Or(kind, "true or false") + ": " + text}
	}
	if len(all) == 0 {
		t.Fatalf("%s -h lists no flags: %s", plugin, help)
	}
	return all
}

// policySchema is the policy's schema for a part of a policy: no field is required.
func policySchema(t *testing.T) any {
	t.Helper()
	text, err := os.ReadFile("../policy.schema.json")
	if err != nil {
		t.Fatal(err)
	}
	var schema struct {
		Properties struct{ Spec map[string]any } `json:"properties"`
		Defs       map[string]any                `json:"$defs"`
	}
	if err := json.Unmarshal(text, &schema); err != nil {
		t.Fatal(err)
	}
	if schema.Defs != nil {
		t.Fatal("policy.schema.json has definitions, which the chart's schema would have to take over")
	}
	return partial(schema.Properties.Spec)
}

func partial(schema any) any {
	switch s := schema.(type) {
	case map[string]any:
		delete(s, "required")
		for _, word := range []string{"anyOf", "oneOf", "allOf"} {
			if list, ok := s[word].([]any); ok && allRequire(list) {
				delete(s, word)
			}
		}
		for _, v := range s {
			partial(v)
		}
	case []any:
		for _, v := range s {
			partial(v)
		}
	}
	return schema
}

// allRequire returns whether alternatives differ only in the fields that they require.
func allRequire(list []any) bool {
	return !slices.ContainsFunc(list, func(v any) bool {
		s, ok := v.(map[string]any)
		return !ok || len(s) != 1 || s["required"] == nil
	})
}

func TestGeneratedInstallYAML(t *testing.T) {
	values, err := os.ReadFile("../install-values.yaml")
	if err != nil {
		t.Fatal(err)
	}
	out, err := render(t, string(values))
	if err != nil {
		t.Fatal(err)
	}
	written(t, "../install.yaml", append([]byte("# Rendered from chart/ with install-values.yaml by `make generate`.\n"), out...))
}

// Without Helm, nodes are repaired from the same templates.
func TestGeneratedRepairTemplates(t *testing.T) {
	out, err := render(t, "repair: {enabled: true}", "--show-only=templates/repair.yaml")
	if err != nil {
		t.Fatal(err)
	}
	written(t, "../repair/templates.yaml", append([]byte("# Rendered from chart/ by `make generate`.\n"), out...))
}
