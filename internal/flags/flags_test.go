package flags

import (
	"errors"
	"flag"
	"io"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestList(t *testing.T) {
	check := func(name string) error {
		if strings.Contains(name, "/") {
			return errors.New("a slash")
		}
		return nil
	}
	tests := map[string]struct {
		args []string
		want []string
		err  string
	}{
		"the default":                    {nil, []string{"a", "b"}, ""},
		"replaces the default":           {[]string{"-l", "c"}, []string{"c"}, ""},
		"white space is dropped":         {[]string{"-l", " c , d"}, []string{"c", "d"}, ""},
		"nothing is an empty list":       {[]string{"-l", ""}, []string{}, ""},
		"the last one counts":            {[]string{"-l", "c", "-l", "d"}, []string{"d"}, ""},
		"an empty name":                  {[]string{"-l", "c,,d"}, []string{"a", "b"}, `an empty name in "c,,d"`},
		"a name that is not acceptable":  {[]string{"-l", "c,d/e"}, []string{"a", "b"}, "a slash"},
		"white space alone is no name":   {[]string{"-l", " "}, []string{"a", "b"}, "an empty name"},
		"a comma alone has empty names":  {[]string{"-l", ","}, []string{"a", "b"}, "an empty name"},
		"a comma at the end is one more": {[]string{"-l", "c,"}, []string{"a", "b"}, "an empty name"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			set := flag.NewFlagSet("test", flag.ContinueOnError)
			set.SetOutput(io.Discard)
			got := []string{"a", "b"}
			List(set, &got, "l", "a `list`", check)
			err := set.Parse(test.args)
			if (err != nil) != (test.err != "") || err != nil && !strings.Contains(err.Error(), test.err) {
				t.Fatalf("error %v, want %q", err, test.err)
			}
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestTheDefaultOfAListIsInTheHelp(t *testing.T) {
	set := flag.NewFlagSet("test", flag.ContinueOnError)
	var out strings.Builder
	set.SetOutput(&out)
	some, none := []string{"a", "b"}, []string(nil)
	List(set, &some, "some", "`list` of some", nil)
	List(set, &none, "none", "`list` of none", nil)
	set.PrintDefaults()
	const want = "  -none list\n    \tlist of none\n  -some list\n    \tlist of some (default a,b)\n"
	if diff := cmp.Diff(want, out.String()); diff != "" {
		t.Error(diff)
	}
}
