package clustertest

import (
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/pitcrew-dev/pitcrew/e2e/cluster"
)

// Lives runs one remediator after the other with the same arguments. Each does one write, and is killed before it learns of it. A second
// write that was under way then counts, too, and may end the next life before its own. stop ends the last one and returns all
// writes, as method and path. Events do not count: they come after what they are about, and nothing depends on them.
func Lives(t testing.TB, c *cluster.Cluster, args ...string) (stop func() (writes []string)) {
	t.Helper()
	var mu sync.Mutex
	var life *cluster.Process
	var writes []string
	proxy, err := c.StartProxy(func(answer *http.Response) {
		request := answer.Request
		if request.Method == http.MethodGet || answer.StatusCode >= 300 || strings.Contains(request.URL.Path, "/events") {
			return
		}
		mu.Lock()
		defer mu.Unlock()
		writes = append(writes, request.Method+" "+request.URL.Path)
		life.Kill()
	})
	if err != nil {
		t.Fatal(err)
	}
	over, ended := make(chan struct{}), make(chan error, 1)
	go func() {
		for {
			mu.Lock()
			p, err := c.RunRemediator(t.Context(), proxy, args...)
			life = p
			mu.Unlock()
			if err != nil {
				ended <- err
				return
			}
			select {
			case <-p.Done():
			case <-over:
				p.Kill()
				ended <- nil
				return
			}
		}
	}()
	stop = sync.OnceValue(func() []string {
		close(over)
		if err := <-ended; err != nil {
			t.Error(err)
		}
		proxy.Close()
		return writes
	})
	t.Cleanup(func() { stop() })
	return stop
}
