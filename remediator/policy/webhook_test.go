package policy

import (
	"fmt"
	"strings"
	"testing"
)

func TestAnHTTPWebhookMustBeAllowedByName(t *testing.T) {
	const text = head + "spec:\n  budget: {maxNodes: 1}\n  webhooks: {pager: {url: '%s://pager.example.com/token', secretFile: x%s}}\n"
	for _, test := range []struct{ scheme, more, want string }{
		{"https", "", ""},
		{"https", ", allowHTTP: true", ""},
		{"http", ", allowHTTP: true", ""},
		{"http", "", `line 5: spec.webhooks[pager].url: Invalid value: "(not shown)": must be an https URL: with http everyone on the way can read it, which needs allowHTTP: true`},
		{"http", ", allowHTTP: false", "which needs allowHTTP: true"},
		{"ftp", ", allowHTTP: true", "must be an https URL with a host"},
	} {
		_, err := Parse(fmt.Appendf(nil, text, test.scheme, test.more))
		if test.want == "" && err != nil || test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want) || strings.Contains(err.Error(), "token")) {
			t.Errorf("%s%s: %v, want %q", test.scheme, test.more, err, test.want)
		}
	}
}
