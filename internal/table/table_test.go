package table

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestRows(t *testing.T) {
	tests := map[string]struct {
		data string
		want [][]string
		err  string
	}{
		"comments are left out":  {"# about\ncode,text\n1,a\n# more\n2,\"b, c\"\n", [][]string{{"1", "a"}, {"2", "b, c"}}, ""},
		"a head alone":           {"code,text\n", [][]string{}, ""},
		"nothing":                {"# about\n", nil, "the first row is not code,text"},
		"no head":                {"1,a\n", nil, "the first row is not code,text"},
		"another order":          {"text,code\n", nil, "the first row is not code,text"},
		"a row with too few":     {"code,text\n1\n", nil, "wrong number of fields"},
		"a row with too many":    {"code,text\n1,a,b\n", nil, "wrong number of fields"},
		"a quote that ends late": {"code,text\n1,\"a\n", nil, "extraneous or missing \""},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			got, err := Rows([]byte(test.data), "code", "text")
			if (err != nil) != (test.err != "") || err != nil && !strings.Contains(err.Error(), test.err) {
				t.Fatalf("error %v, want %q", err, test.err)
			}
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}
