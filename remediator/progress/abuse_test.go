package progress

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"runtime"
	"runtime/metrics"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	clientcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/remediator/stall"
)

// stamp is the time before a line.
const stamp = "2026-11-26T12:00:00.123456789Z "

// flood answers with a text again and again, whatever was asked for, until the reader has gone or a GB was sent, and counts the bytes.
func flood(text string, sent *atomic.Int64) func(http.ResponseWriter, *http.Request) bool {
	chunk := bytes.Repeat([]byte(text), 1+(32<<10)/len(text))
	return func(w http.ResponseWriter, _ *http.Request) bool {
		for total := 0; total < 1<<30; total += len(chunk) {
			n, err := w.Write(chunk)
			sent.Add(int64(n))
			if err != nil {
				break
			}
		}
		return true
	}
}

// heap is the size of the objects in memory, those that are not collected yet included.
func heap() uint64 {
	s := []metrics.Sample{{Name: "/memory/classes/heap/objects:bytes"}}
	metrics.Read(s)
	return s[0].Value.Uint64()
}

// A tenant with lines of a GB, logs that never end and expressions of the worst kind, all at once: what that costs is bounded, and the job
// of another tenant is looked at meanwhile.
func TestWhatATenantPrintsCostsLittleAndDelaysNobody(t *testing.T) {
	const (
		abuser = "abuser"
		each   = 12 // jobs of each kind: together more than there are workers, and reads at a time
	)
	r := newRig(t, "victim", 1, optIn)
	if err := r.c.AddNamespace(t.Context(), abuser, nil); err != nil {
		t.Fatal(err)
	}
	var sent atomic.Int64
	kinds := map[string]struct {
		expression string
		flood      func(http.ResponseWriter, *http.Request) bool
		lines      []string
	}{
		"line":    {optIn[conditions.AnnotationProgress], flood("x", &sent), nil},
		"endless": {optIn[conditions.AnnotationProgress], flood(stamp+"step 1\n", &sent), nil},
		// So long that many lines have to be read again, and so costly that the bound of a look ends the matching.
		"many":  {optIn[conditions.AnnotationProgress], nil, slices.Repeat([]string{stamp + "x\n"}, 5000)},
		"worst": {`(x*){1,90}y(?P<step>\d+)`, nil, slices.Repeat([]string{stamp + strings.Repeat("x", 1000) + "\n"}, 100)},
	}
	for kind, k := range kinds {
		for i := range each {
			job := &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Namespace: abuser, Name: fmt.Sprintf("%s-%d", kind, i)}, Spec: *r.job.Spec.DeepCopy()}
			job.Annotations = map[string]string{conditions.AnnotationProgress: k.expression, conditions.AnnotationStalledAfter: "15m"}
			job.Spec.Selector, job.Spec.Template.Labels = nil, nil
			job.Spec.Template.Spec.Containers[0].Resources = corev1.ResourceRequirements{}
			if err := r.c.Client.Create(t.Context(), job); err != nil {
				t.Fatal(err)
			}
		}
	}
	pods := map[string]string{} // by name, the kind
	r.eventually("the pods of the abuser run", func() error {
		var list corev1.PodList
		if err := r.c.Client.List(t.Context(), &list, client.InNamespace(abuser)); err != nil {
			return err
		}
		for _, p := range list.Items {
			if p.Status.Phase == corev1.PodRunning {
				pods[p.Name], _, _ = strings.Cut(p.Name, "-")
			}
		}
		if len(pods) != each*len(kinds) {
			return fmt.Errorf("%d of %d", len(pods), each*len(kinds))
		}
		return nil
	})
	r.k.mu.Lock()
	for pod, kind := range pods {
		r.k.first[pod], r.k.lines[pod] = kinds[kind].flood, kinds[kind].lines
	}
	r.k.mu.Unlock()
	asked := func() map[string]int {
		r.k.mu.Lock()
		defer r.k.mu.Unlock()
		return maps.Clone(r.k.asked)
	}
	// looked waits until so many pods have been looked at since some time.
	looked := func(before map[string]int, least int, pods ...string) {
		r.eventually("looks", func() error {
			now, n := asked(), 0
			for _, pod := range pods {
				if now[pod] > before[pod] {
					n++
				}
			}
			if n < least {
				return fmt.Errorf("at %d pods, want %d", n, least)
			}
			return nil
		})
	}
	abusers := slices.Collect(maps.Keys(pods))
	begun, before := time.Now(), heap()
	peak, done, measured := before, make(chan struct{}), make(chan struct{})
	go func() {
		defer close(measured)
		tick := time.NewTicker(5 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-done:
				return
			case <-tick.C:
				peak = max(peak, heap())
			}
		}
	}()
	defer r.run()()
	r.all("step 1")
	looked(nil, 1, r.pods...)
	looked(nil, 1, abusers...)
	countKinds := func() int {
		read := map[string]bool{}
		for pod := range asked() {
			read[pods[pod]] = true
		}
		return len(read)
	}
	// A machine that is slow has fewer of the abuser looked at in each round: the time of its lists and matches is its own.
	rounds := 0
	for ; rounds < 3 || rounds < 20 && countKinds() <= len(kinds); rounds++ {
		r.idle()
		at := asked()
		r.clock.ahead.Add(int64(15 * time.Minute)) // and its pace has recovered
		tick := fmt.Sprintf(`{"metadata":{"annotations":{"e2e.pitcrew.dev/look":"%d"}}}`, rounds)
		// A change of the namespace has all of its jobs looked at.
		if err := r.c.Client.Patch(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: abuser}}, client.RawPatch("application/merge-patch+json", []byte(tick))); err != nil {
			t.Fatal(err)
		}
		looked(at, 1, abusers...)
		r.touch(map[string]any{"e2e.pitcrew.dev/look": fmt.Sprint(rounds)})
		touched := time.Now()
		looked(at, 1, r.pods...)
		took := time.Since(touched)
		t.Logf("the victim was looked at after %s", took)
		if took > lookTimeout {
			t.Errorf("the victim was looked at after %s", took)
		}
	}
	close(done)
	<-measured
	reads, floods, minutes, read := 0, int64(0), 1+rounds+int(time.Since(begun)/stall.Interval), map[string]int{}
	for pod, n := range asked() {
		reads += n
		read[pods[pod]] += n
		if kinds[pods[pod]].flood != nil {
			floods += int64(n)
		}
	}
	t.Logf("%d reads in %d minutes; a flood has sent %d MB before the reader had gone; the heap grew by %d MB at most", reads, minutes, sent.Load()/floods>>20, (peak-before)>>20)
	if len(read) != 1+len(kinds) {
		t.Fatalf("not all kinds were read: %v", read)
	}
	if most := 2 * (1 + len(pods)) * minutes; reads > most {
		t.Errorf("%d reads in %d minutes, want at most %d", reads, minutes, most)
	}
	// What is on its way in the API server and the sockets included.
	if each := sent.Load() / floods; each > 32<<20 {
		t.Errorf("a flood has sent %d bytes before the reader had gone", each)
	}
	if grown := peak - before; grown > 256<<20 {
		t.Errorf("the heap grew by %d bytes", grown)
	}
}

// Four matches of the worst kind in each second would take most of a core.
func TestAMatchThatTakesLongCountsAsSeveralReads(t *testing.T) {
	f, _ := newFollower()
	f.Clock = &clocktesting.SimpleIntervalClock{Time: noon, Duration: 4*matchOfARead + time.Millisecond} // the time that a match takes
	now := clocktesting.NewFakePassiveClock(noon)
	f.reads = newReads(now)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, stamp+"step 5") }))
	defer server.Close()
	core, err := clientcorev1.NewForConfig(&rest.Config{Host: server.URL, QPS: -1})
	if err != nil {
		t.Fatal(err)
	}
	f.pods = core
	settings, err := stall.Parse(stall.Annotations{Progress: "step", StalledAfter: "15m"}, stall.Compile)
	if err != nil {
		t.Fatal(err)
	}
	reads := func(namespace string) (n int) {
		for ; f.reads.allow(namespace, 1) == 1; n++ {
			if _, _, err := f.readAs(t.Context(), namespace, stall.Look{Pod: stall.Pod{Name: "p", Container: "main"}}, settings, usual); err != nil {
				t.Fatal(err)
			}
		}
		return n
	}
	if n := reads("a"); n < namespaceBurst/5 || n > namespaceBurst/5+1 {
		t.Errorf("%d of %d reads at once, each with a match that is worth four more", n, namespaceBurst)
	}
	now.SetTime(noon.Add(10 * time.Second))
	if n := reads("a"); n < 10*namespaceReadsPerSecond/5-1 || n > 10*namespaceReadsPerSecond/5 {
		t.Errorf("%d reads in ten more seconds", n)
	}
	if n := f.reads.allow("b", namespaceBurst); n != namespaceBurst {
		t.Errorf("another namespace has %d reads", n)
	}
	f.reads.charge("b", matchOfARead-1)
	f.reads.charge("b", 10*time.Second) // a clock that jumps
	now.SetTime(noon.Add(10*time.Second + (maxCharged+1)*time.Second/namespaceReadsPerSecond))
	if n := f.reads.allow("b", 1); n != 1 {
		t.Error("a clock that jumps costs more than some reads")
	}
}

// As many jobs as are followed, each with a large expression of its own: what is kept of them has an upper size, and so has what is refused.
func TestManyExpressionsCostLittle(t *testing.T) {
	f, _ := newFollower()
	refused := "(?:b?a?c?d?e?){0,999}"
	_, first := f.compile(refused)
	if _, again := f.compile(refused); first == nil || !errors.Is(again, first) {
		t.Errorf("%v, and then %v: the refusal is not remembered", first, again)
	}
	runtime.GC()
	before := heap()
	for i := range maxFollowed {
		f.reads = newReads(f.Clock) // the pace of reads is for the expressions of one moment
		req := request{NamespacedName: types.NamespacedName{Namespace: fmt.Sprint(i / maxPerNamespace), Name: fmt.Sprint(i)}}
		annotations := stall.Annotations{Progress: fmt.Sprintf("(?:[a-z]?){0,150}%d", i), StalledAfter: "15m"}
		known, _ := f.follow(req, &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{UID: types.UID(req.Name)}}, annotations)
		if known == nil || known.wrong != nil {
			t.Fatalf("job %d: %v", i, known)
		}
	}
	runtime.GC()
	if grown := (heap() - before) >> 20; grown > 16 {
		t.Errorf("%d jobs with an expression of their own take %d MiB", maxFollowed, grown)
	}
	runtime.KeepAlive(f)
}
