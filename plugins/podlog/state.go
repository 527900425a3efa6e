package main

import (
	"cmp"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
)

// state is what all runs share: how far each log was read, and what was found.
type state struct {
	// Files is keyed by device and inode, which a rotation keeps.
	Files    map[string]cursor `json:"files"`
	Episodes episodes          `json:"episodes"`
	// Lost counts logs that were gone before they were read to their end, Malformed the lines that are not of the CRI's form.
	Lost      int `json:"lost,omitempty"`
	Malformed int `json:"malformed,omitempty"`
}

// cursor is how far one log was read. Offsets and sizes are bytes.
type cursor struct {
	// Next is where the next look begins to read. It lies before Seen while the end of a line is still to come.
	Next int64 `json:"next"`
	// Seen is the end of what was read: a line that ends up to there is not counted again.
	Seen int64 `json:"seen"`
	// Size is the file's size when it was last looked at.
	Size int64 `json:"size"`
	// Head is the time at the file's beginning. Another one is another file: truncated, or the inode used again.
	Head string `json:"head"`
	// Namespace is the pod's: only a run that watches it knows when the file is gone.
	Namespace string `json:"namespace"`
	// Missed reports that the last look did not find the file. It may have been on its way from one name to another.
	Missed bool `json:"missed,omitempty"`
}

// episode is a row of lines of one workload that say the same, each within the window of another.
type episode struct {
	Namespace string `json:"namespace"`
	// Workload is the pod's name without what changes whenever it is made anew.
	Workload string `json:"workload"`
	Pattern  string `json:"pattern"`
	Xid      int    `json:"xid,omitempty"`
	Relayed  bool   `json:"relayed,omitempty"`

	First time.Time `json:"first"`
	Last  time.Time `json:"last"`
	Count int       `json:"count"`
	// Pod, Container and Match are those of the first line, for people.
	Pod       string `json:"pod"`
	Container string `json:"container"`
	Match     string `json:"match"`
}

// episodes is all that was found, or what one look found in one log.
type episodes []episode

// The bounds of what is kept, whatever the workloads write.
const (
	maxEpisodes = 256
	maxPerText  = 8 // of one workload and pattern
	maxMatch    = 120
)

func (e episode) subject() string { return subject(e.Namespace, e.Workload) }

// sameText reports whether both are of the same workload and pattern.
func (e episode) sameText(f episode) bool {
	return e.Namespace == f.Namespace && e.Workload == f.Workload && e.Pattern == f.Pattern
}

// add merges an episode with the one of which it is a part, if there is one, and keeps the bounds.
func (s *episodes) add(e episode, c classifier) {
	same := 0
	for i := range *s {
		f := &(*s)[i]
		if !f.sameText(e) {
			continue
		}
		same++
		if f.Xid != e.Xid || f.Relayed != e.Relayed || e.Last.Before(f.First.Add(-c.window)) || e.First.After(f.Last.Add(c.window)) {
			continue
		}
		if e.First.Before(f.First) {
			f.First = e.First
		}
		if e.Last.After(f.Last) {
			f.Last = e.Last
		}
		f.Count += e.Count
		return
	}
	*s = append(*s, e)
	if same == maxPerText {
		s.forget(e.sameText, func(e episode) conditions.Repair {
			f, _ := c.judge(e, *s)
			return f.Repair
		})
	}
	if len(*s) > maxEpisodes {
		// The pattern's own class: to judge each among all would cost a look's time when many workloads fail.
		s.forget(func(episode) bool { return true }, func(e episode) conditions.Repair { return c.patterns[e.Pattern].Repair })
	}
}

// forget forgets one of the weakest class: the oldest, because the latest explain what comes next, but from Inspect up
// the newest, because the message must not change with each line of a flood.
func (s *episodes) forget(of func(episode) bool, repair func(episode) conditions.Repair) {
	weakest, class := -1, conditions.Repair(0)
	for i, e := range *s {
		if !of(e) {
			continue
		}
		r := repair(e)
		if weakest >= 0 {
			first := e.First.Compare((*s)[weakest].First)
			if r >= conditions.Inspect {
				first = -first
			}
			if cmp.Or(cmp.Compare(r, class), first) >= 0 {
				continue
			}
		}
		weakest, class = i, r
	}
	*s = slices.Delete(*s, weakest, weakest+1)
}

// forgetFiles forgets the logs that are gone for two looks in a row. A run knows only of the namespaces that it watches. A
// look that could not read every folder forgets nothing unless the state grows too large.
func (s *state) forgetFiles(l *look) (changed bool) {
	sure := l.complete || len(s.Files) > maxFiles
	for id, c := range l.known.Files {
		there := l.there[id]
		if s.Files[id] != c || !sure || !l.namespaces.has(c.Namespace) || there && !c.Missed {
			continue
		}
		changed = true
		if there || !c.Missed {
			c.Missed = !there
			s.Files[id] = c
			continue
		}
		if c.Seen < c.Size {
			s.Lost++
		}
		delete(s.Files, id)
	}
	return changed
}

// clear forgets what stands against the subjects that contain the text and returns them.
func (s *state) clear(text string) (subjects []string) {
	if s.Lost+s.Malformed > 0 && strings.Contains(allLogs, text) {
		s.Lost, s.Malformed = 0, 0
		subjects = append(subjects, allLogs)
	}
	s.Episodes = slices.DeleteFunc(s.Episodes, func(e episode) bool {
		if !strings.Contains(e.subject(), text) {
			return false
		}
		subjects = append(subjects, e.subject())
		return true
	})
	slices.Sort(subjects)
	return slices.Compact(subjects)
}

// generated is what controllers put behind a name: five characters, and before them a Deployment's hash, both from the
// alphabet without vowels of k8s.io/apimachinery/pkg/util/rand.
var generated = regexp.MustCompile(`(-[bcdfghjklmnpqrstvwxz2456789]{6,10})?-[bcdfghjklmnpqrstvwxz2456789]{5}$`)

// allLogs is the subject of what concerns no single pod.
const allLogs = "pod logs"

// subject names a workload in a message.
func subject(namespace, workload string) string { return "pod " + namespace + "/" + workload }

// workloadOf returns a pod's name as it stays from restart to restart: the message of a condition must not change with each.
func workloadOf(pod string) string {
	if at := generated.FindStringIndex(pod); at != nil && at[0] > 0 {
		return pod[:at[0]]
	}
	return pod
}
