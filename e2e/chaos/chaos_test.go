// Package chaos lets a seeded world go wrong in many ways at once, beside two real remediators, and checks over the history of its
// objects that they never do what they must not, and that all comes to rest when the faults end.
//
//	make chaos SEED=7 FOR=1h
//
// A seed determines what happens to the world and when, not the interleaving with the programs. What is checked depends on the order of
// writes alone: a slow machine makes a world do less, and nothing else.
package chaos

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pitcrew-dev/pitcrew/e2e/cluster"
	"github.com/pitcrew-dev/pitcrew/e2e/cluster/clustertest"
	"github.com/pitcrew-dev/pitcrew/e2e/components"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/causes"
	"github.com/pitcrew-dev/pitcrew/remediator/repair/visit"
)

var (
	firstSeed = flag.Uint64("seed", 5, "of the first world; the next ones count up. In that of the default remediators are killed early, and much is done after that")
	length    = flag.Duration("for", 20*time.Second, "how `long` worlds go wrong one after the other; the time in which they come to rest is not counted")
	most      = flag.Duration("world", worldLength, "how `long` one of them goes wrong at most")
	loud      = flag.Bool("loud", false, "print each action as it is done")
)

const (
	// worldLength is how long one world goes wrong by default.
	worldLength = time.Minute
	// pace is the average time between two actions.
	pace = 300 * time.Millisecond
	// patience is more than a world takes to come to rest.
	patience = 12 * time.Minute
)

func TestMain(m *testing.M) {
	clustertest.Main(m, cluster.Options{JobSet: true, NodeGrace: 10 * time.Second})
}

func patchOf(body any) ([]byte, error) { return json.Marshal(body) }

func TestChaos(t *testing.T) {
	c := clustertest.Get(t)
	if err := components.BuildOurs(t.Context(), c.Root, "./remediator", "./kubectl-pitcrew"); err != nil {
		t.Fatal(err)
	}
	if err := startOperators(t.Context(), c); err != nil {
		t.Fatal(err)
	}
	seed := *firstSeed
	for left := *length; left > 0; left -= *most {
		length := min(left, *most)
		t.Run(fmt.Sprintf("seed %d", seed), func(t *testing.T) { run(t, seed, length) })
		if t.Failed() {
			t.Fatalf("again: make chaos SEED=%d FOR=%s WORLD=%s", seed, length, length)
		}
		seed++
	}
}

func run(t *testing.T, seed uint64, length time.Duration) {
	w := newWorld(t, seed)
	ctx, stop := context.WithCancel(t.Context())
	var ended sync.WaitGroup
	for _, r := range w.replicas {
		ended.Go(func() { r.supervise(ctx) })
	}
	ended.Go(func() { w.playHardware(ctx) })
	t.Cleanup(func() {
		stop()
		ended.Wait()
		w.end(t)
	})
	began, did := time.Now(), 0
	for _, a := range plan(seed, length) {
		pause(t.Context(), time.Until(began.Add(a.at)))
		if time.Since(began) > 2*length {
			break
		}
		if *loud {
			t.Logf("%s %s", time.Since(began).Round(time.Millisecond), a.name)
		}
		if err := a.do(w); err != nil {
			t.Fatalf("%s: %v", a.name, err)
		}
		did++
	}
	if w.check(t); t.Failed() {
		return // it may never come to rest
	}
	clustertest.Until(t, patience, "the world is healed", w.heal)
	var last string
	since, restarted := time.Now(), time.Now()
	for err := w.atRest(); err != nil; err = w.atRest() {
		if err := context.Cause(w.Context()); err != nil {
			t.Fatal(err) // a part of the cluster has ended
		}
		if text := err.Error(); text != last && *loud {
			t.Logf("%s not at rest:\n%s", time.Since(since).Round(time.Second), text)
		}
		last = err.Error()
		if time.Since(since) > patience {
			t.Errorf("the world does not come to rest:\n%s", last)
			break
		}
		if time.Since(restarted) > 90*time.Second {
			if err := w.restartOthers(); err != nil {
				t.Fatal(err)
			}
			restarted = time.Now()
		}
		pause(t.Context(), time.Second)
	}
	w.check(t)
	w.checkUse(t)
	t.Logf("seed %d: %d actions, at rest after %s", seed, did, time.Since(since).Round(time.Second))
}

// check checks the history.
func (w *world) check(t *testing.T) {
	var now corev1.NodeList
	clustertest.Until(t, patience, "the API server answers", func() error { return w.Client.List(w.ctx, &now, client.Limit(1)) })
	end := revision(now.ResourceVersion)
	caughtUp := map[string]func() error{
		"nodes":  func() error { return w.nodes.caughtUp(w.ctx, w.Client) },
		"leases": func() error { return w.leases.caughtUp(w.ctx, w.Client) },
		"pods":   func() error { return w.pods.caughtUp(w.ctx, w.Client) },
		"visits": func() error { return w.repairs.caughtUp(w.ctx, w.Client) },
	}
	for i, h := range w.jobs {
		caughtUp[jobs[i].name] = func() error { return h.caughtUp(w.ctx, w.Client) }
	}
	for what, check := range caughtUp {
		clustertest.Until(t, patience, "the watch of "+what+" keeps up", check)
	}
	states := statesOf(w.nodes.until(end))
	leaders := leadership{leases: w.leases.until(end), wrote: w.writers.wrote, writers: w.writers.of, jobWriters: w.writers.ofJob}
	leaders.leases = slices.DeleteFunc(leaders.leases, func(v version[*coordinationv1.Lease]) bool { return v.object.Name != quarantine.ControllerName })
	w.mu.Lock()
	defer w.mu.Unlock()
	var found []violation
	for _, p := range places {
		found = append(found, checkBudget(states, leaders, p)...)
	}
	found = append(found, checkCauses(states, w.putBack)...)
	found = append(found, checkReleases(states, w.mayHaveObserved)...)
	found = append(found, checkManualReleases(states)...)
	found = append(found, checkBreaker(states, leaders, w.breaker)...)
	more, actions := checkVisits(states, leaders, w.repairs.until(end), w.pods.until(end))
	found = append(found, more...)
	found = append(found, checkForeign(states, w.writers.of, w.removed, w.cordoned, w.uncordoned)...)
	stops, starts := 0, 0
	for i, h := range w.jobs {
		versions := h.until(end)
		more, n := checkRestarts(versions, jobs[i].isWhole())
		found, stops = append(found, more...), stops+n
		more, n = checkIncarnations(versions, w.pods.until(end), states, func(*metav1.PartialObjectMetadata) bool { return jobs[i].isWhole() })
		found, starts = append(found, more...), starts+n
	}
	for _, v := range found[:min(len(found), 5)] {
		t.Error(v)
	}
	if len(found) > 5 {
		t.Errorf("and %d more violations", len(found)-5)
	}
	quarantines, releases, isolations, visits := map[string]bool{}, map[string]bool{}, map[string]bool{}, map[visit.Kind]map[string]bool{}
	for _, s := range states {
		if v := s.visit(); v != nil {
			if visits[v.Kind] == nil {
				visits[v.Kind] = map[string]bool{}
			}
			visits[v.Kind][v.ID] = true
		}
		if s.isQuarantined() && s.record.IsIsolated() {
			isolations[s.record.ID] = true
		}
		switch {
		case s.isQuarantined():
			quarantines[s.record.ID] = true
		case s.record != nil && s.record.Phase == causes.Released && s.before.isQuarantined():
			releases[s.record.ID] = true
		}
	}
	var kinds []string
	for kind, ids := range visits {
		kinds = append(kinds, fmt.Sprintf("%d %s", len(ids), kind))
	}
	slices.Sort(kinds)
	t.Logf("%d versions of nodes, %d quarantines, of which %d of single GPUs, %d releases, visits %q, %d stops of jobs, %d starts, %d came back, %d restarts of other programs, %d Jobs of visits; commands of persons %v, refused %v",
		len(states), len(quarantines), len(isolations), len(releases), kinds, stops, starts, w.cameBack, w.restarts, actions, w.commands, w.refused)
	if len(quarantines) == 0 || stops == 0 {
		t.Log("the remediators had nothing to do or no time to do it: this world proves little")
	}
}

// checkUse checks what the processes have used, and that none has panicked.
func (w *world) checkUse(t *testing.T) {
	for _, r := range w.replicas {
		r.mu.Lock()
		t.Logf("remediator %s: %d processes, at most %d MiB, %d descriptors, %d goroutines", r.name, r.processes, r.most.mib, r.most.descriptors, r.most.goroutines)
		if !r.most.isBounded() {
			t.Errorf("remediator %s uses %+v", r.name, r.most)
		}
		t.Logf("remediator %s: ends of processes %v", r.name, r.ends)
		for _, text := range r.unclear {
			t.Errorf("remediator %s has ended, and nothing that the world did explains it:\n%s", r.name, text)
		}
		for _, text := range r.panics {
			t.Errorf("remediator %s panicked:\n%s", r.name, text)
		}
		r.mu.Unlock()
	}
}

// logControllers prints the last lines of the other programs of the cluster that are about this world.
func (w *world) logControllers(t *testing.T) {
	for _, program := range []string{"kube-controller-manager", "kube-scheduler", "jobset-controller"} {
		paths, err := filepath.Glob(filepath.Join(w.Dir, "*-"+program+"*.log"))
		if err != nil || len(paths) == 0 {
			t.Errorf("no log of %s: %v", program, err)
		}
		for _, path := range paths {
			text, err := os.ReadFile(path)
			if err != nil {
				t.Error(err)
			}
			lines := slices.DeleteFunc(strings.Split(string(text), "\n"), func(line string) bool { return !strings.Contains(line, w.pool) })
			t.Logf("the end of %s about this world:\n%s", filepath.Base(path), strings.Join(lines[max(0, len(lines)-20):], "\n"))
		}
	}
}

// end removes the world.
func (w *world) end(t *testing.T) {
	//nolint:usetesting // the test's own context has ended by now
	ctx := context.Background()
	if t.Failed() {
		for _, r := range w.replicas {
			if p := r.current(); p != nil {
				log := p.Log()
				t.Logf("the end of the log of remediator %s:\n%s", r.name, log[max(0, len(log)-3000):])
			}
		}
		w.logControllers(t)
	}
	w.frail.Kill()
	var names []string
	for i := range nodes {
		names = append(names, w.node(i))
	}
	if err := w.DeleteNodes(ctx, names...); err != nil {
		t.Error(err)
	}
	if err := w.Client.Delete(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: w.pool}}); err != nil {
		t.Error(err)
	}
}
