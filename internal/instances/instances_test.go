package instances

import (
	"os"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

// The numbers are those of the vendor's pages of accelerated instance types.
func TestTheTypesThatWeKnow(t *testing.T) {
	want := map[string]Instance{
		"p4d.24xlarge": {8, 4}, "p4de.24xlarge": {8, 4}, "p5.48xlarge": {8, 32}, "p5e.48xlarge": {8, 32}, "p5en.48xlarge": {8, 16},
		"p6-b200.48xlarge": {8, 8}, "p6-b300.48xlarge": {8, 16}, "p6e-gb200.36xlarge": {4, 4}, "g6.48xlarge": {8, 1}, "g6.xlarge": {1, 0},
	}
	for name, instance := range want {
		if got, found, err := Find(Builtin, name); err != nil || !found || got != instance {
			t.Errorf("%s: %+v, %t, %v; want %+v", name, got, found, err, instance)
		}
	}
	if rows := strings.Count(Builtin, "|efa\n") + strings.Count(Builtin, "|\n"); rows != len(want) {
		t.Errorf("%d rows, %d of them known here", rows, len(want))
	}
}

// The preset for EFA selects the types that have EFA, or hca and gpucount would judge them on no node.
func TestThePresetSelectsTheTypesWithEFA(t *testing.T) {
	data, err := os.ReadFile("../../manifests/chart/files/checks.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var file struct {
		Presets map[string]struct {
			MatchExpressions []struct{ Values []string }
		}
	}
	if err := yaml.Unmarshal(data, &file); err != nil {
		t.Fatal(err)
	}
	var types []string
	for line := range strings.Lines(Builtin) {
		if name, _, found := strings.Cut(line, "|"); found && strings.HasSuffix(line, "|efa\n") && !strings.HasPrefix(line, "#") {
			types = append(types, name)
		}
	}
	got := file.Presets["aws-efa"].MatchExpressions[0].Values
	slices.Sort(got)
	slices.Sort(types)
	if !slices.Equal(got, types) {
		t.Errorf("preset aws-efa: %v\nwith EFA:      %v", got, types)
	}
}

func TestMalformedRows(t *testing.T) {
	for _, row := range []string{"p5.48xlarge", "p5.48xlarge|x", "p5.48xlarge|-1", "p5.48xlarge|8|x|true|efa"} {
		if i, found, err := Find(row, "p5.48xlarge"); err == nil {
			t.Errorf("%q: %+v, %t", row, i, found)
		}
	}
}
