package doctor

import (
	"strings"
	"testing"
)

func TestLabelsThatOptNothingIn(t *testing.T) {
	for _, test := range []struct {
		labels map[string]string
		want   string
	}{
		{map[string]string{"pitcrew.dev/restart-on-node-fault": "true", "app": "x", "pitcrew.dev/restarting": "true"}, ""},
		{map[string]string{"pitcrew.dev/restart-on-node-fault": "false"}, ""},
		{map[string]string{"pitcrew.dev/restart-on-node-fault": "True"}, "pitcrew.dev/restart-on-node-fault=True"},
		{map[string]string{"pitcrew.dev/restart-on-fault": "true"}, "pitcrew.dev/restart-on-fault=true"},
		{map[string]string{"pitcrew.io/restart-on-node-fault": "true"}, "pitcrew.io/restart-on-node-fault=true"},
		{map[string]string{"restartOnNodeFault": "true"}, "restartOnNodeFault=true"},
	} {
		if got := strings.Join(wrongOptIns(test.labels), ","); got != test.want {
			t.Errorf("%v: %q, want %q", test.labels, got, test.want)
		}
	}
}

func TestTheMeaningOfAWrongOptIn(t *testing.T) {
	const unclear = "true, or =false to opt it out"
	for value, want := range map[string]string{
		"True": "true", "yes": "true", "on": "true", "1": "true", "true": "true",
		"False": "false", "no": "false", "OFF": "false", "0": "false", "false": "false",
		"": unclear, "maybe": unclear,
	} {
		if meant, or := meantBy(value); meant+or != want {
			t.Errorf("%q: %q, want %q", value, meant+or, want)
		}
	}
}
