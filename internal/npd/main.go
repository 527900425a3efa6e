package npd

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"runtime/debug"
	"strings"
	"syscall"
)

// Main runs the plugin and ends the process. It is the only exit of a plugin: an error, a panic, a bad flag and -h
// are exit 2, because exit 1 would say that the node is sick and exit 0 that it is healthy.
func Main[S any](p *Plugin, c Check[S]) {
	slog.SetDefault(slog.New(slog.NewTextHandler(os.Stderr, nil)))
	os.Exit(int(run(p, c, os.Args[1:], os.Stdout)))
}

func run[S any](p *Plugin, c Check[S], args []string, stdout io.Writer) (status Status) {
	defer func() {
		if v := recover(); v != nil {
			slog.Error("panic", "value", v, "stack", string(debug.Stack()))
			status = say(stdout, unknown("panic: %v", v))
		}
	}()
	if err := p.Parse(args); err != nil {
		return say(stdout, unknown("%v", err))
	}
	for _, pr := range p.prints {
		if pr.set {
			return printText(stdout, pr.text, p.Args())
		}
	}
	if p.NArg() > 0 && !p.clear {
		return say(stdout, unknown("unexpected argument %q", p.Arg(0)))
	}
	if c.UsesDriver != nil && !c.UsesDriver() {
		c.Driver = nil
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()

	switch {
	case p.clear:
		return clearLatch(ctx, p, c, stdout)
	case os.Getenv(workerEnv) != "" && c.Driver != nil:
		return work(p, c)
	case p.snapshot != "":
		c.Read = func(context.Context) (S, error) { return load[S](p.snapshot) }
	}
	l := &looker[S]{p: p, c: c}
	if c.Driver != nil && p.snapshot == "" {
		w, err := newWorker(p, c.Driver, args)
		if err != nil {
			return say(stdout, unknown("%v", err))
		}
		l.isolate(w)
	}
	if p.dump {
		return dump(ctx, l, stdout)
	}
	if npd, ok := parentNPD(); ok && p.Hold > 0 && p.snapshot == "" {
		return hold(ctx, l, npd, args, stdout)
	}
	return say(stdout, l.look(ctx))
}

// say prints the line and returns the exit code that belongs to it.
func say(stdout io.Writer, a answer) Status {
	fmt.Fprintln(stdout, a.Message)
	return a.Status
}

func printText(stdout io.Writer, text func([]string) (string, error), args []string) Status {
	out, err := text(args)
	if err != nil {
		return say(stdout, unknown("%v", err))
	}
	fmt.Fprint(stdout, out)
	return OK
}

func clearLatch[S any](ctx context.Context, p *Plugin, c Check[S], stdout io.Writer) Status {
	if c.Clear == nil {
		return say(stdout, unknown("%s latches nothing, so there is nothing to clear", p.Name()))
	}
	ctx, cancel := context.WithTimeout(ctx, p.Timeout)
	defer cancel()
	cleared, err := c.Clear(ctx, strings.Join(p.Args(), " "))
	if err != nil {
		return say(stdout, unknown("clear: %v", err))
	}
	if len(cleared) == 0 {
		return say(stdout, answer{OK, "nothing to clear"})
	}
	return say(stdout, answer{OK, line("cleared " + strings.Join(cleared, ", "))})
}

func dump[S any](ctx context.Context, l *looker[S], stdout io.Writer) Status {
	s, err := l.read(ctx)
	if err != nil {
		return say(stdout, unknown("%v", err))
	}
	out, err := json.MarshalIndent(s, "", "  ")
	if err != nil {
		return say(stdout, unknown("dump: %v", err))
	}
	fmt.Fprintf(stdout, "%s\n", out)
	return OK
}

func load[S any](path string) (s S, err error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return s, err
	}
	if err := json.Unmarshal(data, &s); err != nil {
		return s, fmt.Errorf("snapshot %s: %w", path, err)
	}
	return s, nil
}

// looker takes one look at a time.
type looker[S any] struct {
	p *Plugin
	c Check[S]
	// w runs the reads of a check that calls into a driver; nil for the others.
	w *worker
	// stuck is closed when a Read that outlived its limit returns after all; there is never a second one beside it.
	stuck chan struct{}
}

// read calls Read and gives up on it after the limit, whether it heeds its context or not.
func (l *looker[S]) read(ctx context.Context) (S, error) {
	type outcome struct {
		s     S
		err   error
		panic any
	}
	var none S
	// One text for the look that got stuck and for those that find it so: the answer has not changed.
	tooLong := fmt.Errorf("no answer within %s", l.p.Timeout)
	if l.stuck != nil {
		select {
		case <-l.stuck:
			l.stuck = nil
		default:
			return none, tooLong
		}
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), l.p.Timeout)
	defer cancel()
	done, came := make(chan outcome, 1), make(chan struct{})
	go func() {
		defer close(came)
		var o outcome
		defer func() {
			if o.panic = recover(); o.panic != nil {
				slog.Error("panic", "value", o.panic, "stack", string(debug.Stack()))
			}
			done <- o
		}()
		o.s, o.err = l.c.Read(ctx)
	}()
	select {
	case o := <-done:
		if o.panic != nil {
			return none, fmt.Errorf("panic: %v", o.panic)
		}
		return o.s, o.err
	case <-ctx.Done():
		l.stuck = came
		return none, tooLong
	}
}

// isolate makes all looks of l read in workers of w.
func (l *looker[S]) isolate(w *worker) {
	l.w = w
	l.c.Read = func(ctx context.Context) (s S, err error) {
		data, err := w.read(ctx)
		if err != nil {
			return s, err
		}
		return s, json.Unmarshal(data, &s)
	}
}

func (l *looker[S]) look(ctx context.Context) answer {
	if l.w == nil {
		return l.judge(ctx)
	}
	if l.p.maintenance() {
		if err := l.w.pause(); err != nil {
			slog.Warn("maintenance", "err", err)
		}
		last, err := l.w.last.Update(func(*answer) bool { return false })
		if err != nil || last.Message == "" {
			return unknown("maintenance, and nothing is known from before it")
		}
		return last
	}
	now := l.judge(ctx)
	if _, err := l.w.last.Update(func(last *answer) bool {
		changed := *last != now
		*last = now
		return changed
	}); err != nil {
		slog.Warn("the answer is not kept for a maintenance", "err", err)
	}
	return now
}

func (l *looker[S]) judge(ctx context.Context) answer {
	s, err := l.read(ctx)
	if hung := (hungError{}); errors.As(err, &hung) {
		return hung.result().answer(l.p.MinRepair)
	}
	if err != nil {
		return unknown("%v", err)
	}
	return l.c.Judge(s).answer(l.p.MinRepair)
}
