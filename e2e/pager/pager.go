// Package pager receives alerts as a pager does: from a real Prometheus with the shipped alerts, through a real Alertmanager.
package pager

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pitcrew-dev/pitcrew/e2e/cluster"
	"github.com/pitcrew-dev/pitcrew/e2e/cluster/clustertest"
)

// Alert is one of those that Alertmanager posts to a webhook.
type Alert struct {
	Status      string            `json:"status"`
	Labels      map[string]string `json:"labels"`
	Annotations map[string]string `json:"annotations"`
}

// is returns whether the alert has the status, the name and all of the labels, "name=value".
func (a Alert) is(status, name string, labels []string) bool {
	return a.Status == status && a.Labels["alertname"] == name && !slices.ContainsFunc(labels, func(pair string) bool {
		label, value, _ := strings.Cut(pair, "=")
		return a.Labels[label] != value
	})
}

// Inbox is a webhook that stores the alerts that it receives.
type Inbox struct {
	url string

	mu   sync.Mutex
	came []Alert
}

// New starts an inbox that ends with the test.
func New(t *testing.T) *Inbox {
	t.Helper()
	i := &Inbox{}
	server := httptest.NewServer(i)
	t.Cleanup(server.Close)
	i.url = server.URL
	return i
}

func (i *Inbox) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var message struct {
		Alerts []Alert `json:"alerts"`
	}
	if err := json.NewDecoder(r.Body).Decode(&message); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	i.came = append(i.came, message.Alerts...)
}

// All are the alerts that came.
func (i *Inbox) All() []Alert {
	i.mu.Lock()
	defer i.mu.Unlock()
	return slices.Clone(i.came)
}

// Until waits for an alert with a name and labels, "name=value", that is firing or resolved.
func (i *Inbox) Until(t *testing.T, status, name string, labels ...string) Alert {
	t.Helper()
	var found Alert
	clustertest.Until(t, Patience, fmt.Sprintf("alert %s %s %q", name, status, labels), func() error {
		came := i.All()
		at := slices.IndexFunc(came, func(a Alert) bool { return a.is(status, name, labels) })
		if at < 0 {
			return fmt.Errorf("came: %v", came)
		}
		found = came[at]
		return nil
	})
	return found
}

// Names lists the received alerts, each once.
func (i *Inbox) Names() []string {
	names := map[string]bool{}
	for _, a := range i.All() {
		names[a.Labels["alertname"]] = true
	}
	return slices.Sorted(maps.Keys(names))
}

// Patience is much longer than an alert takes.
const Patience = 5 * time.Minute

// alertmanagerConfig sends everything to one webhook, soon.
const alertmanagerConfig = `
route: {receiver: inbox, group_by: [alertname, node], group_wait: 1s, group_interval: 1s}
receivers: [{name: inbox, webhook_configs: [{url: %q}]}]
`

// prometheusConfig scrapes what the chart's PodMonitors scrape, with the labels that those add.
const prometheusConfig = `
global: {scrape_interval: 1s, evaluation_interval: 1s}
rule_files: [%q]
alerting: {alertmanagers: [{static_configs: [{targets: [%q]}]}]}
scrape_configs:
- {job_name: remediator, honor_labels: true, static_configs: [{targets: [%s], labels: {namespace: pitcrew, pod: pitcrew-remediator-0}}]}
- {job_name: node-problem-detector, static_configs: [{targets: [%q], labels: {node: machine}}]}
`

// Watch starts Alertmanager, which posts to the inbox, and, once that is ready, Prometheus with the shipped alerts, and returns its URL.
// It scrapes the node-problem-detector of the node machine and the remediators at their addresses, host:port.
func (i *Inbox) Watch(t *testing.T, c *cluster.Cluster, npd string, remediators ...string) string {
	t.Helper()
	alertmanager, err := c.StartAlertmanager(t.Context(), fmt.Appendf(nil, alertmanagerConfig, i.url))
	if err != nil {
		t.Fatal(err)
	}
	prometheus, err := c.StartPrometheus(t.Context(), fmt.Appendf(nil, prometheusConfig,
		filepath.Join(impatientRules(t, c.Root), "*.yaml"), strings.TrimPrefix(alertmanager, "http://"), `"`+strings.Join(remediators, `", "`)+`"`, npd))
	if err != nil {
		t.Fatal(err)
	}
	return prometheus
}

// impatientRules are the shipped alerts with durations of seconds instead of minutes.
func impatientRules(t *testing.T, root string) string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(root, "manifests", "alerts", "*.yaml"))
	if err != nil || len(files) == 0 {
		t.Fatalf("alerts: %q, %v", files, err)
	}
	dir := t.TempDir()
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		text = regexp.MustCompile(`(?m)^(\s+for): .*$`).ReplaceAll(text, []byte("$1: 3s"))
		text = regexp.MustCompile(`\[3m\]`).ReplaceAll(text, []byte("[5s]"))
		if err := os.WriteFile(filepath.Join(dir, filepath.Base(file)), text, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}
