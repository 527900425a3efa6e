package version

import (
	"runtime/debug"
	"testing"
)

func TestTheReleaseComesBeforeWhatTheGoCommandRecorded(t *testing.T) {
	info := func(version string) *debug.BuildInfo { return &debug.BuildInfo{Main: debug.Module{Version: version}} }
	for _, test := range []struct {
		name, release string
		info          *debug.BuildInfo
		want          string
	}{
		{"a release", "v0.2.0", info("v0.1.1-0.20261120120000-0123456789ab"), "v0.2.0"},
		{"go install", "", info("v0.2.0"), "v0.2.0"},
		{"a clone", "", info("v0.1.1-0.20261120120000-0123456789ab+dirty"), "v0.1.1-0.20261120120000-0123456789ab+dirty"},
		{"an older go command", "", info(""), "(devel)"},
		{"no build information", "", nil, "(devel)"},
	} {
		t.Run(test.name, func(t *testing.T) {
			if got := from(test.release, test.info, test.info != nil); got != test.want {
				t.Errorf("got %q, want %q", got, test.want)
			}
		})
	}
}
