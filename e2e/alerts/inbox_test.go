package alerts

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/pitcrew-dev/pitcrew/e2e/cluster/clustertest"
)

// alert is one of those that Alertmanager posts to a webhook.
type alert struct {
	Status      string            `json:"status"`
	Labels      map[string]string `json:"labels"`
	Annotations map[string]string `json:"annotations"`
}

// is returns whether the alert has the status, the name and all of the labels, "name=value".
func (a alert) is(status, name string, labels []string) bool {
	return a.Status == status && a.Labels["alertname"] == name && !slices.ContainsFunc(labels, func(pair string) bool {
		label, value, _ := strings.Cut(pair, "=")
		return a.Labels[label] != value
	})
}

// inbox is a webhook that stores the alerts that it receives.
type inbox struct {
	url string

	mu   sync.Mutex
	came []alert
}

func newInbox(t *testing.T) *inbox {
	t.Helper()
	i := &inbox{}
	server := httptest.NewServer(i)
	t.Cleanup(server.Close)
	i.url = server.URL
	return i
}

func (i *inbox) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var message struct {
		Alerts []alert `json:"alerts"`
	}
	if err := json.NewDecoder(r.Body).Decode(&message); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	i.came = append(i.came, message.Alerts...)
}

func (i *inbox) all() []alert {
	i.mu.Lock()
	defer i.mu.Unlock()
	return slices.Clone(i.came)
}

// until waits for an alert.
func (i *inbox) until(t *testing.T, status, name string, labels ...string) alert {
	t.Helper()
	var found alert
	clustertest.Until(t, patience, fmt.Sprintf("alert %s %s %q", name, status, labels), func() error {
		came := i.all()
		at := slices.IndexFunc(came, func(a alert) bool { return a.is(status, name, labels) })
		if at < 0 {
			return fmt.Errorf("came: %v", came)
		}
		found = came[at]
		return nil
	})
	return found
}

// names lists the received alerts, each once.
func (i *inbox) names() []string {
	names := map[string]bool{}
	for _, a := range i.all() {
		names[a.Labels["alertname"]] = true
	}
	return slices.Sorted(maps.Keys(names))
}
