package npd

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"runtime/debug"
	"strings"
	"syscall"
)

// Main runs the plugin and ends the process. It is the only exit of a plugin: an error, a panic and a bad flag are
// exit 2, because exit 1 would say that the node is sick and exit 0 that it is healthy.
func Main[S any](p *Plugin, c Check[S]) {
	slog.SetDefault(slog.New(slog.NewTextHandler(os.Stderr, nil)))
	os.Exit(int(run(p, c, os.Args[1:], os.Stdout)))
}

func run[S any](p *Plugin, c Check[S], args []string, stdout io.Writer) (status Status) {
	defer func() {
		if v := recover(); v != nil {
			slog.Error("panic", "value", v, "stack", string(debug.Stack()))
			status = respond(stdout, unknown("panic: %v", v))
		}
	}()
	if status, done := p.parse(args, stdout); done {
		return status
	}
	if c.UsesDriver != nil && !c.UsesDriver() {
		c.Driver = nil
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()

	switch reads := os.Getenv(workerEnv); {
	case p.clear:
		return clearLatch(ctx, p, c, stdout)
	case reads != "" && c.Driver != nil:
		return work(p, c.workerRead(reads))
	case p.snapshot != "":
		c.Read = func(context.Context) (S, error) { return load[S](p.snapshot) }
	}
	r := &runner[S]{p: p, c: c}
	npd, underNPD := parentNPD()
	if c.Driver != nil && p.snapshot == "" {
		w, err := newWorker(p, p.workerName(), c.Driver, args)
		if err == nil {
			err = r.isolate(w, underNPD)
		}
		if err != nil {
			return respond(stdout, unknown("%v", err))
		}
	}
	if p.dump {
		return dump(ctx, r, stdout)
	}
	if underNPD && p.Hold > 0 && p.snapshot == "" {
		return hold(ctx, r, npd, args, stdout)
	}
	return respond(stdout, r.look(ctx))
}

// parse reads the flags, and answers what needs no check: -h, a bad flag and the flags that print a text.
func (p *Plugin) parse(args []string, stdout io.Writer) (status Status, done bool) {
	usage := p.Usage
	p.Usage = func() {} // Parse calls it for -h and for a bad flag alike
	p.SetOutput(io.Discard)
	switch err := p.Parse(args); {
	case errors.Is(err, flag.ErrHelp):
		p.SetOutput(stdout)
		usage()
		return OK, true
	case err != nil:
		return respond(stdout, unknown("%v", err)), true
	}
	for _, pr := range p.prints {
		if pr.set {
			return printText(stdout, pr.text, p.Args()), true
		}
	}
	if p.NArg() > 0 && !p.clear {
		return respond(stdout, unknown("unexpected argument %q", p.Arg(0))), true
	}
	return OK, false
}

// workerRead returns what a worker does that reads this.
func (c Check[S]) workerRead(reads string) func(context.Context) (any, error) {
	switch {
	case c.Shared != nil && reads == readsAll:
		return c.Shared.read
	case c.Shared != nil:
		return c.Shared.readPart
	}
	return func(ctx context.Context) (any, error) { return c.Read(ctx) }
}

// respond prints the line and returns the exit code that belongs to it.
func respond(stdout io.Writer, a answer) Status {
	fmt.Fprintln(stdout, a.Message)
	return a.Status
}

func printText(stdout io.Writer, text func([]string) (string, error), args []string) Status {
	out, err := text(args)
	if err != nil {
		return respond(stdout, unknown("%v", err))
	}
	fmt.Fprint(stdout, out)
	return OK
}

func clearLatch[S any](ctx context.Context, p *Plugin, c Check[S], stdout io.Writer) Status {
	if c.Clear == nil {
		return respond(stdout, unknown("%s latches nothing, so there is nothing to clear", p.Name()))
	}
	ctx, cancel := context.WithTimeout(ctx, p.Timeout)
	defer cancel()
	cleared, err := c.Clear(ctx, strings.Join(p.Args(), " "))
	if err != nil {
		return respond(stdout, unknown("clear: %v", err))
	}
	if len(cleared) == 0 {
		return respond(stdout, answer{OK, "nothing to clear"})
	}
	return respond(stdout, answer{OK, line("cleared " + strings.Join(cleared, ", "))})
}

func dump[S any](ctx context.Context, r *runner[S], stdout io.Writer) Status {
	s, err := r.read(ctx)
	if err != nil {
		return respond(stdout, unknown("%v", err))
	}
	out, err := json.MarshalIndent(s, "", "  ")
	if err != nil {
		return respond(stdout, unknown("dump: %v", err))
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

// runner takes one look at a time.
type runner[S any] struct {
	p *Plugin
	c Check[S]
	// w runs the reads of a check that calls into a driver; nil for the others.
	w *worker
	// stuck is closed when a Read that outlived its limit returns after all; there is never a second one beside it.
	stuck chan struct{}
	// healthy reports that the last look found nothing, and nothing that the next one may confirm.
	healthy bool
}

// read calls Read and gives up on it after the limit, even if Read ignores its context.
func (r *runner[S]) read(ctx context.Context) (S, error) {
	type outcome struct {
		s     S
		err   error
		panic any
	}
	var none S
	// The look that gets stuck and those after it give one text: the answer has not changed.
	tooLong := fmt.Errorf("no answer within %s", r.p.Timeout)
	if r.stuck != nil {
		select {
		case <-r.stuck:
			r.stuck = nil
		default:
			return none, tooLong
		}
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), r.p.Timeout)
	defer cancel()
	done, returned := make(chan outcome, 1), make(chan struct{})
	go func() {
		defer close(returned)
		var o outcome
		defer func() {
			if o.panic = recover(); o.panic != nil {
				slog.Error("panic", "value", o.panic, "stack", string(debug.Stack()))
			}
			done <- o
		}()
		o.s, o.err = r.c.Read(ctx)
	}()
	select {
	case o := <-done:
		if o.panic != nil {
			return none, fmt.Errorf("panic: %v", o.panic)
		}
		return o.s, o.err
	case <-ctx.Done():
		r.stuck = returned
		return none, tooLong
	}
}

// isolate makes all looks of r call into the driver in workers of w. underNPD says that they judge what other checks have read.
func (r *runner[S]) isolate(w *worker, underNPD bool) error {
	r.w = w
	if shared := r.c.Shared; shared != nil {
		h, err := newSharing(shared, w)
		if err != nil {
			return err
		}
		get := h.readPart
		if underNPD && !w.p.dump && !shared.apart() {
			get = h.get
		}
		shared.setGet(get)
		return nil
	}
	r.c.Read = func(ctx context.Context) (s S, err error) {
		data, err := w.read(ctx)
		if err != nil {
			return s, err
		}
		return s, json.Unmarshal(data, &s)
	}
	return nil
}

func (r *runner[S]) look(ctx context.Context) answer {
	if r.w == nil {
		return r.judge(ctx)
	}
	// What is not known here fails the read below, too, which says why.
	if maintenance, err := r.p.maintenance(); err == nil && maintenance {
		if err := r.w.resetHungTimer(); err != nil {
			slog.Warn("the wait for a hung driver goes on during maintenance", "err", err)
		}
		last, err := r.w.last.Update(func(*answer) bool { return false })
		if err != nil || last.Message == "" {
			return unknown("maintenance, and nothing is known from before it")
		}
		return last
	}
	now := r.judge(ctx)
	if last, ok := r.w.last.Unchanged(); ok && last == now {
		return now
	}
	if _, err := r.w.last.Update(func(last *answer) bool {
		changed := *last != now
		*last = now
		return changed
	}); err != nil {
		slog.Warn("the answer is not kept for a maintenance", "err", err)
	}
	return now
}

func (r *runner[S]) judge(ctx context.Context) answer {
	r.healthy = false
	s, err := r.read(ctx)
	if hung := (hungError{}); errors.As(err, &hung) {
		return hung.result().answer(r.p.MinRepair)
	}
	if err != nil {
		return unknown("%v", err)
	}
	result := r.c.Judge(s)
	now := result.answer(r.p.MinRepair)
	r.healthy = now.Status == OK && !result.Unconfirmed
	return now
}
