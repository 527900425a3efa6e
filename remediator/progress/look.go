package progress

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"golang.org/x/time/rate"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/utils/clock"

	"github.com/pitcrew-dev/pitcrew/remediator/stall"
)

// How much of a log is asked for: the last lines as a rule; fewer where the end of them was cut off, more where lines before them may
// match.
var (
	usual = stall.Asked{Lines: 200, Bytes: 128 << 10}
	few   = stall.Asked{Lines: 10, Bytes: 256 << 10}
	many  = stall.Asked{Lines: 4000, Bytes: 1 << 20}
)

const (
	// readTimeout is how long a kubelet may take for an answer, lookTimeout how long one look at a job may take.
	readTimeout, lookTimeout = 5 * time.Second, 30 * time.Second
	// nodeRest is how long a node is left alone that has not answered.
	nodeRest = 2 * time.Minute
	// maxReads is how many logs are read side by side, maxMatches how many are matched, sideBySide how many of one job are read.
	maxReads, maxMatches, sideBySide = 32, 4, 8
	// The pace of reads, of all and of a namespace.
	readsPerSecond, burst                   = 200, 1000
	namespaceReadsPerSecond, namespaceBurst = 4, 256
	// matchOfARead is how long a match, or a list of the pods of a job, may take that counts as no further read, maxCharged as how many one
	// counts at most: a clock may jump.
	matchOfARead, maxCharged = 50 * time.Millisecond, 100
	// retryShort is when the rest of a look is taken for which the pace left no reads.
	retryShort = 10 * time.Second
	// maxNodes bounds the memory of nodes that do not answer.
	maxNodes = 10_000
)

// reads paces what is read.
type reads struct {
	clock    clock.PassiveClock
	reading  chan struct{}
	matching chan struct{}

	mu         sync.Mutex
	all        *rate.Limiter
	namespaces map[string]*rate.Limiter
	// unanswered are the nodes that have not answered, and until when they are left alone.
	unanswered map[string]time.Time
}

func newReads(c clock.PassiveClock) *reads {
	return &reads{
		clock: c, reading: make(chan struct{}, maxReads), matching: make(chan struct{}, maxMatches),
		all: rate.NewLimiter(readsPerSecond, burst), namespaces: map[string]*rate.Limiter{}, unanswered: map[string]time.Time{},
	}
}

// allow returns how many of some reads in a namespace may be made now.
func (r *reads) allow(namespace string, n int) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	own := r.namespaces[namespace]
	if own == nil {
		own = rate.NewLimiter(namespaceReadsPerSecond, namespaceBurst)
		r.namespaces[namespace] = own
	}
	now := r.clock.Now()
	n = max(0, min(n, int(own.TokensAt(now)), int(r.all.TokensAt(now))))
	own.AllowN(now, n)
	r.all.AllowN(now, n)
	return n
}

// charge takes what took long off the pace of its namespace, as the reads that it was worth. An expression of the worst kind takes
// 0.2 s of a core: 4 of them in each second would be most of one.
func (r *reads) charge(namespace string, took time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if own := r.namespaces[namespace]; own != nil {
		own.ReserveN(r.clock.Now(), min(int(took/matchOfARead), maxCharged))
	}
}

// forget drops the pace of a namespace in which no job is followed any more.
func (r *reads) forget(namespace string, empty bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if own := r.namespaces[namespace]; empty && own != nil && own.TokensAt(r.clock.Now()) >= namespaceBurst {
		delete(r.namespaces, namespace)
	}
}

// resting reports whether a node is left alone, because it has not answered lately.
func (r *reads) resting(node string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.clock.Now().Before(r.unanswered[node])
}

func (r *reads) rest(node string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.unanswered) >= maxNodes {
		clear(r.unanswered)
	}
	r.unanswered[node] = r.clock.Now().Add(nodeRest)
}

// look reads the logs that the job wants, and gives it the answers. short: not all of them, for the pace.
func (f *follower) look(ctx context.Context, namespace string, followed *followed) (short bool) {
	wanted := followed.job.Wanted(followed.settings, f.Clock.Now())
	allowed := f.reads.allow(namespace, len(wanted))
	short = allowed < len(wanted)
	wanted = wanted[:allowed]
	ctx, cancel := context.WithTimeout(ctx, lookTimeout)
	defer cancel()
	type answer struct {
		seen stall.Sighting
		err  error
	}
	answers := make([]answer, len(wanted))
	var group sync.WaitGroup
	turn := make(chan struct{}, sideBySide)
	for i, w := range wanted {
		group.Go(func() {
			turn <- struct{}{}
			defer func() { <-turn }()
			answers[i].seen, answers[i].err = f.read(ctx, namespace, w, followed.settings)
		})
	}
	group.Wait()
	now := f.Clock.Now()
	for i, w := range wanted {
		if err := answers[i].err; err != nil {
			followed.job.Failed(w.Rank, reasonOf(err, "pods/log get"), now)
			continue
		}
		followed.job.Answer(w.Rank, answers[i].seen, now)
	}
	return short
}

// errResting is the answer for a node that is left alone.
var errResting = errors.New("its node has not answered lately")

// errPace is the answer where a second read is needed, for which the pace leaves nothing.
var errPace = errors.New("the pace of reads is used up")

// read takes one look at the log of a rank.
func (f *follower) read(ctx context.Context, namespace string, w stall.Look, s stall.Settings) (seen stall.Sighting, err error) {
	if f.reads.resting(w.Pod.Node) {
		f.metrics.reads.WithLabelValues("skipped").Inc()
		return seen, errResting
	}
	text, seen, err := f.readAs(ctx, namespace, w, s, usual)
	switch {
	case err != nil:
	case !stall.Cut(text, usual) && !seen.Missed():
	case f.reads.allow(namespace, 1) == 0:
		return seen, errPace
	case stall.Cut(text, usual):
		_, seen, err = f.readAs(ctx, namespace, w, s, few)
	default:
		_, seen, err = f.readAs(ctx, namespace, w, s, many)
	}
	return seen, err
}

// readAs reads and matches some of the last lines of a log.
func (f *follower) readAs(
	ctx context.Context, namespace string, w stall.Look, s stall.Settings, asked stall.Asked,
) ([]byte, stall.Sighting, error) {
	// One slot until the text is gone: so many texts are in memory, and no more.
	select {
	case f.reads.reading <- struct{}{}:
	case <-ctx.Done():
		return nil, stall.Sighting{}, fmt.Errorf("wait for other reads: %w", ctx.Err())
	}
	defer func() { <-f.reads.reading }()
	text, err := f.fetch(ctx, namespace, w, asked)
	if err != nil {
		f.metrics.reads.WithLabelValues("failed").Inc()
		return nil, stall.Sighting{}, err
	}
	f.metrics.reads.WithLabelValues("read").Inc()
	f.metrics.bytes.Add(float64(len(text)))
	select {
	case f.reads.matching <- struct{}{}:
	case <-ctx.Done():
		return nil, stall.Sighting{}, fmt.Errorf("wait for other matches: %w", ctx.Err())
	}
	defer func() { <-f.reads.matching }()
	began := f.Clock.Now()
	seen := stall.Read(text, asked, s, w.Anchor)
	f.reads.charge(namespace, f.Clock.Now().Sub(began))
	return text, seen, nil
}

// fetch asks the kubelet, through the API server. A node that does not answer in time is left alone for a while.
func (f *follower) fetch(ctx context.Context, namespace string, w stall.Look, asked stall.Asked) ([]byte, error) {
	if ctx.Err() != nil {
		return nil, errors.New("the look took too long")
	}
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	lines, limit := int64(asked.Lines), int64(asked.Bytes)
	stream, err := f.pods.Pods(namespace).GetLogs(w.Pod.Name, &corev1.PodLogOptions{
		Container: w.Pod.Container, TailLines: &lines, LimitBytes: &limit, Timestamps: true,
	}).Stream(ctx)
	if err == nil {
		defer stream.Close()
		var text []byte
		if text, err = io.ReadAll(io.LimitReader(stream, limit)); err == nil {
			return text, nil
		}
	}
	if ctx.Err() != nil || apierrors.IsInternalError(err) || apierrors.IsServiceUnavailable(err) || apierrors.IsTimeout(err) {
		f.reads.rest(w.Pod.Node)
	}
	return nil, fmt.Errorf("read the log of pod %s/%s: %w", namespace, w.Pod.Name, err)
}

// reasonOf returns why something that needs a right could not be read, without what a kubelet or a container runtime has answered.
func reasonOf(err error, right string) string {
	switch {
	case errors.Is(err, errResting):
		return errResting.Error()
	case errors.Is(err, errPace):
		return errPace.Error()
	case errors.Is(err, context.DeadlineExceeded):
		return "its node has not answered in time"
	case apierrors.IsForbidden(err):
		return "the remediator has no right to it (" + right + ")"
	case apierrors.IsNotFound(err):
		return "there is no such pod"
	}
	if status := apierrors.APIStatus(nil); errors.As(err, &status) {
		return fmt.Sprintf("the answer was %d", status.Status().Code)
	}
	return "the request failed"
}
