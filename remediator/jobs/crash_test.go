package jobs

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/pitcrew-dev/pitcrew/e2e/cluster/clustertest"
	"github.com/pitcrew-dev/pitcrew/remediator/policy"
	"github.com/pitcrew-dev/pitcrew/remediator/policy/jobkind"
	"github.com/pitcrew-dev/pitcrew/remediator/restart"
)

// Every process of the remediator dies after one write, so that each pair of writes of a restart has a crash between.
// operators/ has the same with real operators. Here Job and JobSet have real controllers; played are what no operator
// there serves, and what is hard to bring about with one, see [team.play].
func TestARestartSurvivesACrashBetweenEveryTwoWrites(t *testing.T) {
	t.Parallel()
	job := func(tm team) gang { return tm.createJob("train", optedIn, tm.jobSpec(4)) }
	set := func(tm team) gang { return tm.createJobSet("train", optedIn, tm.jobSpec(2)) }
	common := [][]string{{"stop"}, {"hold"}, {"start"}, {"close"}}
	tests := map[string]struct {
		create func(team) gang
		// late: the processes die before their next write, see [clustertest.NewMortal].
		late bool
		// writes are those of each process. A stop that takes longer than a millisecond is held, which is one.
		writes [][]string
		// fault befalls the job before the call.
		fault func(g gang, pod corev1.Pod)
		// grace is the job's time to save its state first, which is announced.
		grace time.Duration
		// check looks at the job afterwards, beyond its pods.
		check func(g gang)
	}{
		"Job":                        {create: job, writes: common},
		"Job, before the next write": {create: job, writes: common, late: true},
		"Job that saves its state":   {create: job, writes: slices.Concat([][]string{{"announce"}}, common), grace: 2 * time.Second},
		"JobSet":                     {create: set, writes: common},
		"JobSet, before the next":    {create: set, writes: common, late: true},
		"MPIJob with a dead worker":  {create: team.playMPIJob, writes: [][]string{{"stop"}, {"hold"}, {"delete"}, {"start"}, {"close"}}, fault: gang.fail},
		"a kind of the policy":       {create: team.playGang, writes: common},
		"Volcano":                    {create: team.playPromptVolcano, writes: [][]string{{"stop"}, {"Command"}, {"sent"}, {"target", "hold"}, {"start"}, {"close"}}, check: gang.retriedOnce},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			tm := newTeam(t, 6, nil)
			cfg := tm.config()
			g := test.create(tm)
			// On a busy machine a process may start after a fixed time to die, find no pod, and never write that it is held.
			ranks := g.runs()
			for i := range ranks {
				tm.annotatePod(&ranks[i], dying(time.Hour, 0))
			}
			rank := ranks[0]
			q := tm.quarantineOf(rank.Spec.NodeName)
			q.CheckpointGrace = test.grace
			if test.fault != nil {
				test.fault(g, ranks[1])
			}
			process := func(writes interceptor.Funcs) (*Controller, func()) {
				return run(t, cfg, writes, func(o *Options) {
					o.StopTimeout = time.Millisecond
					o.Policy = policy.Fixed(&policy.Policy{JobKinds: []jobkind.Kind{playedKind}, Rules: []policy.Rule{{Name: "xid", RestartJobs: true, CheckpointGrace: test.grace}}})
				})
			}
			deaths := len(test.writes)
			if test.late {
				deaths-- // there is no next write to die at after the last
			}
			for n := range deaths {
				m := clustertest.NewMortal(len(test.writes[n]), test.late)
				r, stop := process(m.Funcs())
				// Every process calls for the quarantines that it finds.
				if err := tryRestart(t, r, q); err != nil && !errors.Is(err, clustertest.ErrCrashed) {
					t.Fatal(err)
				}
				if slices.Contains(test.writes[n], "hold") {
					g.isHeld()
					tm.letEnd(ranks)
				}
				select {
				case <-m.Dead:
				case <-time.After(patience):
					t.Fatalf("process %d did not write: %q; record %+v", n+1, test.writes[n], g.record())
				}
				stop()
			}
			if rec := g.record(); !test.late && rec.Current != nil {
				t.Errorf("%d writes have not closed the restart: %+v", deaths, rec.Current)
			}
			r, _ := process(interceptor.Funcs{})
			restartJobs(t, r, q)
			if closed := g.closes(); closed.Phase != restart.Done || closed.Held == "" && closed.Outcome == "" {
				t.Errorf("record %+v", closed)
			}
			if n := len(g.record().Last); n != 1 {
				t.Errorf("%d restarts, want 1", n)
			}
			g.restartedOnce(q.Node)
			if test.check != nil {
				test.check(g)
			}
		})
	}
}

// Volcano deletes a Command when it takes it, long before the job shows that. A process that takes over meanwhile sees neither, and a
// second Command would restart the job once more.
func TestVolcanoIsSentOneCommand(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		last   string
		writes int
	}{{"stop", 1}, {"Command", 2}, {"sent", 3}, {"target", 4}} {
		t.Run("after the process died at "+test.last, func(t *testing.T) {
			t.Parallel()
			tm := newTeam(t, 6, nil)
			cfg := tm.config()
			free := make(chan struct{})
			g, taken := tm.playVolcano(free)
			q := tm.quarantineOf(g.runs()[0].Spec.NodeName)
			m := clustertest.NewMortal(test.writes, false)
			first, stop := run(t, cfg, m.Funcs(), nil)
			if err := tryRestart(t, first, q); err != nil && !errors.Is(err, clustertest.ErrCrashed) {
				t.Fatal(err)
			}
			select {
			case <-m.Dead:
			case <-time.After(patience):
				t.Fatalf("no write %q; record %+v", test.last, g.record())
			}
			stop()
			if test.last == "target" {
				g.takes(taken)
			}
			// The next process has asked for what it could ask for once Volcano no longer has the Command.
			asked := make(chan struct{})
			closeOnce := sync.OnceFunc(func() { close(asked) })
			run(t, cfg, interceptor.Funcs{
				Patch: func(ctx context.Context, c client.WithWatch, o client.Object, p client.Patch, opts ...client.PatchOption) error {
					err := c.Patch(ctx, o, p, opts...)
					if o.GetObjectKind().GroupVersionKind() == commandGVK && apierrors.IsNotFound(err) {
						closeOnce()
					}
					return err
				},
			}, func(o *Options) { o.StopTimeout = time.Millisecond })
			select {
			case <-asked:
			case <-time.After(patience):
				t.Fatalf("the Command was not asked for again; record %+v", g.record())
			}
			g.isHeld()
			close(free)
			if closed := g.closes(); closed.Phase != restart.Done {
				t.Errorf("closed as %+v", closed)
			}
			g.restartedOnce(q.Node)
			g.retriedOnce()
			if n := taken.Load(); n != 1 {
				t.Errorf("Volcano has taken %d Commands, want 1", n)
			}
		})
	}
}

// The API server may carry out a create long after its client has given up and has sent another one.
func TestACommandThatIsCreatedLateGetsNoTarget(t *testing.T) {
	t.Parallel()
	for name, lost := range map[string]bool{"the next create is answered": false, "the answer to the next is lost": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			tm := newTeam(t, 6, nil)
			free := make(chan struct{})
			g, taken := tm.playVolcano(free)
			q := tm.quarantineOf(g.runs()[0].Spec.NodeName)
			creates := 0 // of one job, and so one after the other
			late, other := make(chan client.Object, 1), make(chan struct{})
			refused := sync.OnceFunc(func() { close(other) })
			r, _ := run(t, tm.config(), interceptor.Funcs{
				Create: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.CreateOption) error {
					if o.GetObjectKind().GroupVersionKind() != commandGVK {
						return c.Create(ctx, o, opts...)
					}
					creates++
					if creates == 1 {
						late <- o.DeepCopyObject().(client.Object)
						return context.DeadlineExceeded
					}
					if err := c.Create(ctx, o, opts...); err != nil || creates > 2 || !lost {
						return err
					}
					return context.DeadlineExceeded
				},
				Patch: func(ctx context.Context, c client.WithWatch, o client.Object, p client.Patch, opts ...client.PatchOption) error {
					err := c.Patch(ctx, o, p, opts...)
					if o.GetObjectKind().GroupVersionKind() == commandGVK && err != nil && !apierrors.IsNotFound(err) {
						refused()
					}
					return err
				},
			}, nil)
			restartJobs(t, r, q)
			g.takes(taken)
			if err := tm.c.Client.Create(t.Context(), <-late); err != nil {
				t.Fatal(err)
			}
			select {
			case <-other:
			case <-time.After(patience):
				t.Fatalf("the late Command was not refused; record %+v", g.record())
			}
			close(free)
			if closed := g.closes(); closed.Phase != restart.Done {
				t.Errorf("closed as %+v", closed)
			}
			g.restartedOnce(q.Node)
			g.retriedOnce()
			if n := taken.Load(); n != 1 {
				t.Errorf("Volcano has taken %d Commands, want 1", n)
			}
		})
	}
}

// A new remediator may have the role of an older one for a while, and a policy may deny what it writes.
func TestACommandThatIsRefusedHoldsTheRestart(t *testing.T) {
	t.Parallel()
	forbidden := apierrors.NewForbidden(schema.GroupResource{Group: commandGVK.Group, Resource: "commands"}, "pitcrew", errors.New("no such right"))
	denied := &apierrors.StatusError{ErrStatus: forbidden.Status()}
	denied.ErrStatus.Reason = metav1.StatusReasonInvalid // that of a ValidatingAdmissionPolicy
	for name, test := range map[string]struct {
		create, patch error
		held          string
	}{
		"its creation": {create: forbidden, held: "is refused: "},
		"its target":   {patch: forbidden, held: "the target of Command pitcrew-"},
		"by a policy":  {patch: denied, held: "the target of Command pitcrew-"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			tm := newTeam(t, 6, nil)
			g := tm.playPromptVolcano()
			q := tm.quarantineOf(g.runs()[0].Spec.NodeName)
			var mended atomic.Bool
			answer := func(o client.Object, refusal error, do func() error) error {
				if o.GetObjectKind().GroupVersionKind() == commandGVK && refusal != nil && !mended.Load() {
					return refusal
				}
				return do()
			}
			r, _ := run(t, tm.config(), interceptor.Funcs{
				Create: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.CreateOption) error {
					return answer(o, test.create, func() error { return c.Create(ctx, o, opts...) })
				},
				Patch: func(ctx context.Context, c client.WithWatch, o client.Object, p client.Patch, opts ...client.PatchOption) error {
					return answer(o, test.patch, func() error { return c.Patch(ctx, o, p, opts...) })
				},
			}, nil)
			restartJobs(t, r, q)
			g.isHeld()
			if held := g.record().Current.Held; !strings.Contains(held, test.held) {
				t.Errorf("held: %s", held)
			}
			mended.Store(true)
			if closed := g.closes(); closed.Phase != restart.Done {
				t.Errorf("closed as %+v", closed)
			}
			g.restartedOnce(q.Node)
		})
	}
}

// takes waits until Volcano has taken a Command.
func (g gang) takes(taken *atomic.Int64) {
	g.Helper()
	g.eventually("wait for Volcano to take the Command", func() error {
		if taken.Load() == 0 {
			return errors.New("it has not")
		}
		return nil
	})
}

// An eviction has no second incarnation of the whole.
func TestAnEvictionSurvivesACrashBetweenEveryTwoWrites(t *testing.T) {
	t.Parallel()
	tm := newTeam(t, 3, nil)
	cfg := tm.config()
	g := tm.createDeployment()
	before := g.runs()
	q := tm.quarantineOf(before[0].Spec.NodeName)
	for n, write := range []string{"stop", "evict", "start", "close"} {
		m := clustertest.NewMortal(1, false)
		r, stop := run(t, cfg, m.Funcs(), nil)
		if err := tryRestart(t, r, q); err != nil && !errors.Is(err, clustertest.ErrCrashed) {
			t.Fatal(err)
		}
		select {
		case <-m.Dead:
		case <-time.After(patience):
			t.Fatalf("process %d did not write: %q; record %+v", n+1, write, g.record())
		}
		stop()
	}
	if rec := g.record(); rec.Current != nil || len(rec.Last) != 1 || rec.Last[0].Phase != restart.Done {
		t.Errorf("record %+v", rec)
	}
	g.replaced(before, before[0].UID, q.Node)
}

// fail lets a rank fail, as an object that nobody deletes.
func (g gang) fail(pod corev1.Pod) {
	g.Helper()
	if err := g.c.Client.Status().Patch(g.Context(), &pod, client.RawPatch(types.MergePatchType, []byte(`{"status":{"phase":"Failed"}}`))); err != nil {
		g.Fatal(err)
	}
}

// isHeld waits until the record says what the stop waits for.
func (g gang) isHeld() {
	g.Helper()
	g.eventually("wait for a held stop", func() error {
		if rec := g.record(); rec.Current == nil || rec.Current.Held == "" {
			return fmt.Errorf("record %+v", rec)
		}
		return nil
	})
}

func (g gang) retriedOnce() {
	g.Helper()
	if n := g.read().Retries; n != 1 {
		g.Errorf("Volcano has counted %d retries, want 1", n)
	}
}
