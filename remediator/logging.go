package main

import (
	"flag"
	"fmt"
	"io"
	"log/slog"

	"github.com/go-logr/logr"
	"k8s.io/klog/v2"
	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/pitcrew-dev/pitcrew/internal/plain"
)

// logOptions are what the flags say about logging.
type logOptions struct {
	level slog.Level
	json  bool
}

// addFlags registers -log-level and -log-format. They accept these words only, and no offsets such as "info+2", so that
// values.schema.json of the chart can list them.
func (o *logOptions) addFlags(f *flag.FlagSet) {
	f.Func("log-level", "lowest `level` to log: debug, info, warn or error (default info)", func(text string) error {
		levels := map[string]slog.Level{"debug": slog.LevelDebug, "info": slog.LevelInfo, "warn": slog.LevelWarn, "error": slog.LevelError}
		level, ok := levels[text]
		if !ok {
			return fmt.Errorf("%q is not debug, info, warn or error", text)
		}
		o.level = level
		return nil
	})
	f.Func("log-format", "`format` of the log: text or json (default text)", func(text string) error {
		if text != "text" && text != "json" {
			return fmt.Errorf("%q is not text or json", text)
		}
		o.json = text == "json"
		return nil
	})
}

// logger returns a logger that writes to w. controller-runtime logs its details at V(1) to V(5), which are the levels -1
// to -5 of slog: all of them are called DEBUG, and debug prints those up to V(4).
func (o logOptions) logger(w io.Writer) logr.Logger {
	w = plainLog{w}
	options := &slog.HandlerOptions{Level: o.level, ReplaceAttr: func(groups []string, a slog.Attr) slog.Attr {
		if level, ok := a.Value.Any().(slog.Level); ok && len(groups) == 0 && a.Key == slog.LevelKey && level < slog.LevelInfo {
			a.Value = slog.StringValue(slog.LevelDebug.String())
		}
		return a
	}}
	if o.json {
		return logr.FromSlogHandler(slog.NewJSONHandler(w, options))
	}
	return logr.FromSlogHandler(slog.NewTextHandler(w, options))
}

// plainLog writes a log in which every character is visible: the handlers of slog escape control characters and those of some planes, but
// not all that a terminal obeys or does not show.
type plainLog struct{ next io.Writer }

// Write writes one entry, or more.
func (p plainLog) Write(entry []byte) (int, error) {
	if _, err := io.WriteString(p.next, plain.Lines(string(entry))); err != nil {
		return 0, fmt.Errorf("write the log: %w", err)
	}
	return len(entry), nil
}

// setLogger sends what controller-runtime and client-go log to w, client-go's leader election included.
func (o logOptions) setLogger(w io.Writer) {
	logger := o.logger(w)
	ctrl.SetLogger(logger)
	klog.SetLogger(logger)
}
