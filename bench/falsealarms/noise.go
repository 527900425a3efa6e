package main

import (
	"cmp"
	"fmt"
	"strconv"
	"strings"
	"time"

	"golang.org/x/tools/txtar"
)

// noise is something that a healthy node shows at times.
type noise struct {
	name string
	// rate is how often it happens in 1,000 node-days. source says who published that, or that it is assumed.
	rate   float64
	source string
	steps  []step
}

// step is one line of a noise:
//
//	log FILE N D: TEXT         appends N lines to a log, D apart; $GPU, $PID and $N stand for a GPU, a process and the line
//	edit FILE: OLD => NEW      replaces the first OLD of a file
//	add FILE: N                adds N to the number that a file holds
//	undo                       takes all edits back
//	wait D                     goes on after D
//	away D                     the node does not answer for D
//	reboot D                   the same, and it is in a new boot then
//	cordon, uncordon           makes the node unschedulable, or schedulable again
//	label KEY=VALUE            sets a label of the node, or removes it if VALUE is empty
type step struct {
	verb, file string
	count      int
	every      time.Duration
	text, new  string
}

func readNoise(file string) ([]*noise, error) {
	archive, err := txtar.ParseFile(file)
	if err != nil {
		return nil, err
	}
	var all []*noise
	for _, f := range archive.Files {
		n := &noise{name: f.Name}
		for line := range strings.Lines(string(f.Data)) {
			if err := n.parse(strings.TrimSpace(line)); err != nil {
				return nil, fmt.Errorf("%s: %s: line %q: %w", file, f.Name, line, err)
			}
		}
		if n.rate <= 0 || n.source == "" || len(n.steps) == 0 {
			return nil, fmt.Errorf("%s: %s has no rate, no source or no steps", file, f.Name)
		}
		all = append(all, n)
	}
	return all, nil
}

func (n *noise) parse(line string) (err error) {
	head, text, _ := strings.Cut(line, ": ")
	words := strings.Fields(head)
	if len(words) == 0 {
		return nil
	}
	s := step{verb: words[0], text: text}
	number := func(i int) string { return append(words, "", "", "")[i] }
	switch s.verb {
	case "rate":
		n.rate, err = strconv.ParseFloat(text, 64)
		return err
	case "source":
		n.source = text
		return nil
	case "log":
		s.file = number(1)
		var countErr error
		s.count, countErr = strconv.Atoi(number(2))
		s.every, err = time.ParseDuration(number(3))
		err = cmp.Or(countErr, err)
	case "edit":
		s.file = number(1)
		s.text, s.new, _ = strings.Cut(text, " => ")
	case "add":
		s.file = number(1)
		s.count, err = strconv.Atoi(text)
	case "wait", "away", "reboot":
		s.every, err = time.ParseDuration(number(1))
	case "label":
		s.text, s.new, _ = strings.Cut(number(1), "=")
	case "undo", "cordon", "uncordon":
	default:
		err = fmt.Errorf("no such step")
	}
	n.steps = append(n.steps, s)
	return err
}

// fits reports whether the machine has all that the noise changes.
func (n *noise) fits(m *machine) bool {
	for _, s := range n.steps {
		if strings.Contains(s.text, "$GPU") && len(m.gpus) == 0 {
			return false
		}
		if s.file == "" {
			continue
		}
		file, ok := m.find(s.file)
		if !ok || s.verb == "edit" && !strings.Contains(m.files[file], s.text) {
			return false
		}
	}
	return true
}
