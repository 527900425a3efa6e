package clustertest

import (
	"context"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/pitcrew-dev/pitcrew/e2e/cluster"
)

// Lives runs one remediator after the other with the same arguments. Each does one write, and is killed before it learns of it. stop ends the
// last one and returns all writes, as method and path. Events do not count: they come after what they are about, and nothing depends on them.
func Lives(t testing.TB, c *cluster.Cluster, args ...string) (stop func() (writes []string)) {
	t.Helper()
	var mu sync.Mutex
	var life *cluster.Process
	var writes []string
	proxy, err := c.StartProxyThrough(func(next http.RoundTripper) http.RoundTripper {
		return cluster.RoundTripper(func(request *http.Request) (*http.Response, error) {
			if request.Method == http.MethodGet || strings.Contains(request.URL.Path, "/events") {
				return next.RoundTrip(request)
			}
			mu.Lock()
			by := life
			mu.Unlock()
			// The API server may carry out a second write that was under way when its process was killed. It counts, too.
			answer, err := next.RoundTrip(request.WithContext(context.WithoutCancel(request.Context())))
			if err != nil || answer.StatusCode >= 300 {
				return answer, err
			}
			mu.Lock()
			defer mu.Unlock()
			writes = append(writes, request.Method+" "+request.URL.Path)
			by.Kill()
			return answer, nil
		})
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
