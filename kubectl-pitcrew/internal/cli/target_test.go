package cli

import (
	"os"
	"path/filepath"
	"testing"

	"k8s.io/client-go/tools/clientcmd"
)

// client-go's own limit of 5 requests a second would make doctor, which asks for each of its rights, take 8 s.
func TestRequestsAreAsFrequentAsKubectls(t *testing.T) {
	file := filepath.Join(t.TempDir(), "config")
	if err := os.WriteFile(file, []byte(`{apiVersion: v1, kind: Config, current-context: c,
  contexts: [{name: c, context: {cluster: c, user: u}}], clusters: [{name: c, cluster: {server: "https://127.0.0.1:1"}}],
  users: [{name: u, user: {token: t}}]}`), 0o600); err != nil {
		t.Fatal(err)
	}
	config, err := (&Target{Rules: &clientcmd.ClientConfigLoadingRules{ExplicitPath: file}}).Config()
	if err != nil {
		t.Fatal(err)
	}
	if config.QPS != 50 || config.Burst != 300 {
		t.Errorf("%v requests a second, %d at once; want 50 and 300", config.QPS, config.Burst)
	}
}
