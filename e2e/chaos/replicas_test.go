package chaos

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/pitcrew-dev/pitcrew/e2e/cluster"
	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine"
)

// trouble is what is wrong with the way from a remediator to the API server. The zero value is nothing.
type trouble struct {
	// slow is how long a request takes at most before it is sent.
	slow time.Duration
	// refused and lost are the shares of requests that are not carried out, and that are carried out without an answer.
	refused, lost float64
	// late is how long after its time each event of a watch arrives.
	late time.Duration
}

// writers are the processes that have written records of nodes, Jobs of visits and the lease, by what they have sent.
type writers struct {
	mu      sync.Mutex
	records map[string][]string // by record
	leases  map[string][]byte   // by process
	jobs    map[string][]byte   // by process; not all of it is text
}

func (w *writers) sent(process, path string, body []byte) {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case strings.HasSuffix(path, "/leases") || strings.HasSuffix(path, "/leases/"+quarantine.ControllerName):
		w.leases[process] = append(w.leases[process], body...)
	case strings.HasPrefix(path, "/api/v1/nodes/"):
		var patch struct {
			Metadata struct{ Annotations map[string]string }
		}
		if json.Unmarshal(body, &patch) == nil {
			for _, key := range []string{conditions.AnnotationQuarantine, conditions.AnnotationRepair} {
				if record := patch.Metadata.Annotations[key]; record != "" {
					w.records[record] = append(w.records[record], process)
				}
			}
		}
	case strings.HasSuffix(path, "/namespaces/"+conditions.RepairNamespace+"/jobs"):
		w.jobs[process] = append(w.jobs[process], body...)
	}
}

func (w *writers) of(record string) []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.records[record]
}

// ofJob are the processes that have sent a Job.
func (w *writers) ofJob(name string) (all []string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for process, sent := range w.jobs {
		if bytes.Contains(sent, []byte(name)) {
			all = append(all, process)
		}
	}
	return all
}

func (w *writers) wrote(process, identity string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return bytes.Contains(w.leases[process], []byte(identity))
}

// use is the most of each resource that any process of a remediator was seen to have.
type use struct{ mib, descriptors, goroutines int }

// The bounds are several times what a remediator has in this world.
func (u use) isBounded() bool { return u.mib < 200 && u.descriptors < 256 && u.goroutines < 2000 }

// replica is one of the remediators. When its process ends, the next one is started.
type replica struct {
	name    string
	world   *world
	trouble atomic.Pointer[trouble]

	mu        sync.Mutex
	process   *cluster.Process
	processes int
	most      use
	panics    []string
	ended     string         // why the present process ends, if the world ends it
	ends      map[string]int // of processes, by cause
	unclear   []string       // the ends of the logs of processes that have ended for no known cause

	// freezesAfter is a freeze that begins with the next write; nil: none. The write is carried out before, or once the process thaws.
	freezesAfter atomic.Pointer[freezing]
}

// freezing is a freeze at a write.
type freezing struct {
	carriedOut bool
	length     time.Duration
}

// endsBy notes that the world ends the present process, and is false if there is none yet.
func (r *replica) endsBy(cause string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.ended = cause
	return r.process != nil
}

// countEnd counts the end of a process by its cause.
func (r *replica) countEnd(log string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	cause := r.ended
	switch {
	case cause != "":
	case strings.Contains(log, "leader election lost"):
		cause = "has lost the lease"
	default:
		cause = "unclear"
		r.unclear = append(r.unclear, log[max(0, len(log)-2000):])
	}
	if r.ends == nil {
		r.ends = map[string]int{}
	}
	r.ends[cause]++
	r.ended = ""
}

// supervise runs processes until the context ends.
func (r *replica) supervise(ctx context.Context) {
	for ctx.Err() == nil {
		// The API server may be away: a token is needed.
		_ = wait.PollUntilContextCancel(ctx, 100*time.Millisecond, true, func(ctx context.Context) (bool, error) {
			return r.run(ctx) == nil, nil
		})
	}
}

// run runs one process to its end.
func (r *replica) run(ctx context.Context) error {
	r.mu.Lock()
	r.processes++
	name := fmt.Sprintf("%s%d", r.name, r.processes)
	r.mu.Unlock()
	proxy, err := r.world.StartProxyThrough(func(next http.RoundTripper) http.RoundTripper {
		return cluster.RoundTripper(func(request *http.Request) (*http.Response, error) { return r.carry(name, request, next) })
	})
	if err != nil {
		return err
	}
	defer proxy.Close()
	metrics, err := cluster.FreeAddress()
	if err != nil {
		return err
	}
	// The default lease, shorter than that of other tests: the world has a leader again soon after one has gone.
	p, err := r.world.RunReplica(ctx, proxy, "-policy", r.world.policy, "-metrics-bind-address", metrics, "-lease-duration", "5s", "-repair-namespace", conditions.RepairNamespace)
	if err != nil {
		return err
	}
	r.mu.Lock()
	r.process, r.ended = p, ""
	r.mu.Unlock()
	ticker := time.NewTicker(time.Second)
	defer ticker.Stop()
	for running := true; running; {
		select {
		case <-p.Done():
			running = false
		case <-ctx.Done():
			r.endsBy("the world ends")
			p.Kill()
		case <-ticker.C:
			r.measure(ctx, p.PID(), metrics)
		}
	}
	log := p.Log()
	r.countEnd(log)
	if strings.Contains(log, "panic:") || strings.Contains(log, "fatal error:") {
		r.mu.Lock()
		r.panics = append(r.panics, log[max(0, len(log)-8000):])
		r.mu.Unlock()
	}
	return nil
}

// measure notes what a process has. One that ends meanwhile has nothing.
func (r *replica) measure(ctx context.Context, pid int, metrics string) {
	var now use
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return
	}
	for line := range strings.Lines(string(status)) {
		if fields := strings.Fields(line); len(fields) > 1 && fields[0] == "VmRSS:" {
			kib, _ := strconv.Atoi(fields[1])
			now.mib = kib / 1024
		}
	}
	descriptors, _ := os.ReadDir(filepath.Join("/proc", strconv.Itoa(pid), "fd"))
	now.descriptors = len(descriptors)
	ctx, cancel := context.WithTimeout(ctx, time.Second) // it may be frozen
	defer cancel()
	if text, err := cluster.Scrape(ctx, metrics); err == nil {
		if _, rest, found := strings.Cut(text, "\ngo_goroutines "); found {
			now.goroutines, _ = strconv.Atoi(strings.Fields(rest)[0])
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.most = use{max(r.most.mib, now.mib), max(r.most.descriptors, now.descriptors), max(r.most.goroutines, now.goroutines)}
}

// current is the process that runs, or the last one; nil: there was none yet.
func (r *replica) current() *cluster.Process {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.process
}

// carry carries a request of a process to the API server, as its trouble allows.
func (r *replica) carry(process string, request *http.Request, next http.RoundTripper) (*http.Response, error) {
	ctx, path := request.Context(), request.URL.Path
	if request.Method != http.MethodGet && request.Body != nil && (strings.HasPrefix(path, "/api/v1/nodes/") || strings.Contains(path, "/leases") || strings.HasSuffix(path, "/jobs")) {
		body, err := io.ReadAll(request.Body)
		if err != nil {
			return nil, err
		}
		request.Body = io.NopCloser(bytes.NewReader(body))
		r.world.writers.sent(process, path, body)
	}
	t := r.trouble.Load()
	if t.slow > 0 {
		pause(ctx, rand.N(t.slow))
	}
	if rand.Float64() < t.refused {
		return &http.Response{StatusCode: http.StatusServiceUnavailable, Header: http.Header{}, Body: http.NoBody, Request: request}, nil
	}
	var freezes *freezing
	if request.Method != http.MethodGet && !strings.Contains(path, "/leases") && !strings.Contains(path, "/events") {
		if freezes = r.freezesAfter.Swap(nil); freezes != nil && !freezes.carriedOut {
			r.freezeFor(ctx, freezes.length)
		}
	}
	answer, err := next.RoundTrip(request)
	if freezes != nil && freezes.carriedOut {
		r.freezeFor(ctx, freezes.length)
	}
	if err != nil {
		return nil, err
	}
	if slices.Contains([]string{"true", "1"}, request.URL.Query().Get("watch")) {
		answer.Body = &lateBody{answer.Body, ctx, r}
	} else if rand.Float64() < t.lost {
		answer.Body.Close()
		panic(http.ErrAbortHandler)
	}
	return answer, nil
}

// freezeFor freezes the process for some time, which is over early when the world is healed.
func (r *replica) freezeFor(ctx context.Context, length time.Duration) {
	p := r.current()
	p.Freeze()
	pause(ctx, length)
	p.Thaw()
}

// lateBody is that of a watch.
type lateBody struct {
	io.ReadCloser
	ctx     context.Context
	replica *replica
}

// Read waits with what it has read.
func (b *lateBody) Read(into []byte) (int, error) {
	n, err := b.ReadCloser.Read(into)
	pause(b.ctx, b.replica.trouble.Load().late)
	return n, err
}

// pause is trouble, and nothing waits for its end.
func pause(ctx context.Context, d time.Duration) {
	if d <= 0 {
		return
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}
