package status

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"regexp"
	"strings"
	"time"

	"golang.org/x/term"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pitcrew-dev/pitcrew/kubectl-pitcrew/internal/cli"
)

const (
	// refreshEvery is how often --watch reads the cluster without a change of a node: ages grow, and a pause is no node.
	refreshEvery = 10 * time.Second
	// answersWithin bounds one reading of the cluster: an API server that does not answer must be reported, too.
	answersWithin = 30 * time.Second
)

// ages are what grows without an event: a change of them alone is not printed again.
var ages = regexp.MustCompile(`\b(\d+(s|m|h|d|y))+( ago)?\b`)

// watchStatus shows the status again whenever it has changed, and the errors of reading it, until the context ends.
func watchStatus(ctx context.Context, c *cli.Target, out io.Writer, api client.WithWatch, f statusFlags) error {
	s := screen{out: out, size: terminalSize(out)}
	colour := cli.IsTerminal(out)
	var changes watch.Interface
	defer func() {
		if changes != nil {
			changes.Stop()
		}
	}()
	ticker := time.NewTicker(refreshEvery)
	defer ticker.Stop()
	for ctx.Err() == nil {
		var changed <-chan watch.Event // without a watch, the clock alone
		if changes == nil {
			var err error
			if changes, err = api.Watch(ctx, &corev1.NodeList{}); err != nil {
				changes = nil
			}
		}
		if changes != nil {
			changed = changes.ResultChan()
		}
		reading, cancel := context.WithTimeout(ctx, answersWithin)
		text, _, err := renderStatus(reading, c, api, f, colour)
		cancel()
		if ctx.Err() != nil {
			break
		}
		s.show(c.Now(), text, err)
		select {
		case <-ctx.Done():
		case <-ticker.C:
		case _, open := <-changed:
			if !settle(ctx, changed) || !open {
				changes = nil // the API server ends watches after a while
			}
		}
	}
	return nil
}

// screen shows a text again and again: on a terminal in place, elsewhere as a new paragraph when it has changed.
type screen struct {
	out io.Writer
	// size is that of the terminal, in columns and lines; nil: there is none.
	size func() (width, height int, err error)
	// good is the last text that was read, shown what was printed last.
	good  []byte
	shown string
}

// show shows a text or, with the last text that was read, why there is no new one.
func (s *screen) show(now time.Time, text []byte, err error) {
	key := ages.ReplaceAllString(string(text), "")
	if err == nil {
		s.good = text
	} else {
		key = err.Error()
		text = fmt.Appendf(nil, "ERROR at %s, trying again: %s\n", now.Format(time.TimeOnly), cli.Text(err.Error()))
	}
	if s.size != nil {
		if _, height, sizeErr := s.size(); sizeErr == nil {
			if err != nil {
				text = append(append(text, '\n'), s.good...)
			}
			s.redraw(now, text, height)
			return
		}
	}
	if key != s.shown {
		s.shown = key
		cli.Fprintf(s.out, "%s\n%s\n", now.Format(time.TimeOnly), cli.Lines(text))
	}
}

// redraw writes over what the terminal shows, line by line: nothing is cleared before its successor is there, so nothing flickers. Lines
// that are too long end at the edge, and what does not fit below is counted.
func (s *screen) redraw(now time.Time, text []byte, height int) {
	lines := append([]string{now.Format(time.TimeOnly)}, strings.Split(string(bytes.TrimSuffix(text, []byte("\n"))), "\n")...)
	if height > 1 && len(lines) > height {
		lines = append(lines[:height-1], fmt.Sprintf("... %d lines more", len(lines)-height+1))
	}
	const home, noWrap, wrap, clearLine, clearBelow = "\x1b[H", "\x1b[?7l", "\x1b[?7h", "\x1b[K", "\x1b[J"
	cli.Fprintf(s.out, "%s", cli.Lines(home+noWrap+strings.Join(lines, clearLine+"\r\n")+clearLine+clearBelow+wrap))
}

// terminalSize asks for the size of the terminal, which changes; nil: out is none.
func terminalSize(out io.Writer) func() (int, int, error) {
	file, ok := out.(*os.File)
	if !ok || !term.IsTerminal(int(file.Fd())) {
		return nil
	}
	return func() (int, int, error) { return term.GetSize(int(file.Fd())) }
}

// settle drops the changes within a second of a change: nodes change together, and one status shows all of them. It is false when
// the watch has ended, which is not tried again sooner either.
func settle(ctx context.Context, changed <-chan watch.Event) bool {
	quiet := time.NewTimer(time.Second)
	defer quiet.Stop()
	for open := true; ; {
		select {
		case <-ctx.Done():
			return open
		case <-quiet.C:
			return open
		case _, open = <-changed:
			if !open {
				changed = nil
			}
		}
	}
}
