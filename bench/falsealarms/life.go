package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/remediator/policy"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/causes"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/simulate"
)

// Times of an alert: `for` of the shipped alerts of a problem and of a check that is Unknown.
const (
	alertAfter   = time.Minute
	unknownAfter = 30 * time.Minute
)

// alarm is an alarm of a kind, "alert", "unknown" or "action", by a condition or, for an action, a rule, during a noise.
type alarm struct{ kind, by, during, machine, message string }

// answer is that of a check that has read a text.
type answer struct {
	text, message string
	status        corev1.ConditionStatus
}

// life is one node from day to day.
type life struct {
	*machine
	world  *world
	policy *policy.Policy
	dir    string

	now, boot time.Time
	boots     int
	// files are the present ones, written those on the disk; edits the steps that can be taken back.
	files, written map[string]string
	edits          map[string]string
	node           corev1.Node
	alarmed        map[string]bool

	// answers are the last ones of checks that read nothing but a log or a snapshot, with what they read.
	answers map[string]answer

	during string
	alarms []alarm
	looks  int
}

func (w *world) newLife(m *machine) (*life, error) {
	p, err := policy.Parse([]byte(strings.Replace(w.policy, "mode: observe", "mode: enforce", 1)))
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp(w.dir, m.name+"-")
	l := &life{
		machine: m, world: w, policy: p, dir: dir, now: time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC), during: "nothing",
		alarmed: map[string]bool{}, answers: map[string]answer{},
	}
	l.node = corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: m.name, UID: "1"}}
	l.start()
	return l, err
}

// start is a boot, an hour ago.
func (l *life) start() {
	l.boots++
	l.boot = l.now.Add(-time.Hour)
	l.files, l.written, l.edits = maps.Clone(l.machine.files), map[string]string{}, map[string]string{}
	l.node.Status.NodeInfo.BootID = fmt.Sprintf("boot-%d", l.boots)
	l.set(string(corev1.NodeReady), corev1.ConditionTrue, "")
}

// look runs the checks that the function chooses, all if it is nil, and decides about the node.
func (l *life) look(ctx context.Context, chosen func(check) bool) error {
	if err := l.write(); err != nil {
		return err
	}
	for _, c := range l.checks {
		if chosen != nil && !chosen(c) {
			continue
		}
		if err := l.run(ctx, c); err != nil {
			return err
		}
	}
	l.decide()
	return nil
}

// run runs a check and takes over its answer, as NPD does. One that does not know is asked again: NPD asks at least once a minute, and
// this machine may be too busy for a stand-in.
func (l *life) run(ctx context.Context, c check) error {
	text, isPure := l.reads(c)
	if last, ok := l.answers[c.condition]; ok && isPure && last.text == text {
		l.set(c.condition, last.status, last.message)
		return nil
	}
	status, message, err := l.ask(ctx, c)
	if err == nil && status == corev1.ConditionUnknown {
		status, message, err = l.ask(ctx, c)
	}
	if err == nil {
		l.answers[c.condition] = answer{text, message, status}
		l.set(c.condition, status, message)
	}
	return err
}

// reads returns the log or the snapshot of a check that reads nothing else: with the same text the answer is the same.
func (l *life) reads(c check) (text string, isPure bool) {
	for i, arg := range c.args {
		if arg == "-log" || arg == "-snapshot" {
			return l.written[strings.TrimPrefix(c.args[i+1], "$DIR/")], true
		}
	}
	return "", false
}

func (l *life) ask(ctx context.Context, c check) (status corev1.ConditionStatus, message string, err error) {
	l.looks++
	args := []string{"-state-dir", filepath.Join(l.dir, "state")}
	for _, arg := range slices.Concat(c.args, l.world.mutants[c.condition]) {
		args = append(args, strings.ReplaceAll(arg, "$DIR", l.dir))
	}
	out, err := exec.CommandContext(ctx, filepath.Join(l.world.dir, c.plugin), args...).Output()
	status = corev1.ConditionFalse
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
		status = corev1.ConditionUnknown
		if exit.ExitCode() == 1 {
			status = corev1.ConditionTrue
		}
	} else if err != nil {
		return "", "", fmt.Errorf("%s %q: %w", c.plugin, args, err)
	}
	return status, strings.TrimSpace(strings.ReplaceAll(string(out), l.dir, "$DIR")), nil
}

// write writes the files that have changed, with the present uptime and boot id.
func (l *life) write() error {
	uptime := l.now.Sub(l.boot)
	for name, text := range l.files {
		switch {
		case strings.HasSuffix(name, "proc/uptime"):
			text = fmt.Sprintf("%.2f 1.00\n", uptime.Seconds())
		case strings.HasSuffix(name, "proc/sys/kernel/random/boot_id"):
			text = l.node.Status.NodeInfo.BootID + "\n"
		default:
			text = strings.ReplaceAll(text, "$UPTIME_NS", strconv.FormatInt(int64(uptime), 10))
		}
		if old, ok := l.written[name]; ok && old == text {
			continue
		}
		mode := os.FileMode(0o644)
		if strings.HasPrefix(text, "#!") {
			mode = 0o755
		}
		file := filepath.Join(l.dir, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(file), 0o755), os.WriteFile(file, []byte(text), mode)); err != nil {
			return err
		}
		l.written[name] = text
	}
	return nil
}

// set sets a condition of the node, and counts what its last status has raised until now.
func (l *life) set(condition string, status corev1.ConditionStatus, message string) {
	at := metav1.NewTime(l.now)
	i := slices.IndexFunc(l.node.Status.Conditions, func(c corev1.NodeCondition) bool { return string(c.Type) == condition })
	if i < 0 {
		i = len(l.node.Status.Conditions)
		l.node.Status.Conditions = append(l.node.Status.Conditions, corev1.NodeCondition{
			Type: corev1.NodeConditionType(condition), Status: status, LastTransitionTime: at,
		})
	}
	c := &l.node.Status.Conditions[i]
	l.alert(*c)
	if c.Status != status {
		c.Status, c.LastTransitionTime = status, at
		delete(l.alarmed, condition)
	}
	c.Message, c.LastHeartbeatTime = message, at
}

// alert counts a condition that has been a problem, or Unknown, for the time of its alert. Whether a node is Ready others alert on.
func (l *life) alert(c corev1.NodeCondition) {
	lasts := l.now.Sub(c.LastTransitionTime.Time)
	kind := ""
	switch {
	case c.Type == corev1.NodeReady || l.alarmed[string(c.Type)]:
	case c.Status == corev1.ConditionTrue && lasts >= alertAfter:
		kind = "alert"
	case c.Status == corev1.ConditionUnknown && lasts >= unknownAfter:
		kind = "unknown"
	}
	if kind != "" {
		l.alarmed[string(c.Type)] = true
		l.alarms = append(l.alarms, alarm{kind, string(c.Type), l.during, l.name, c.Message})
	}
}

// decide lets the policy decide. A node that was quarantined is in service again at once, so that the next one counts, too.
func (l *life) decide() {
	isAway := l.node.Status.Conditions[0].Status != corev1.ConditionTrue
	for i := range l.node.Status.Conditions {
		c := &l.node.Status.Conditions[i]
		l.alert(*c)
		if !isAway {
			c.LastHeartbeatTime = metav1.NewTime(l.now)
		}
	}
	l.node = *simulate.Run(l.policy, []corev1.Node{l.node}, "", simulate.Stored{}, l.now)[0].After
	if l.node.Labels[conditions.LabelStatus] != conditions.StatusQuarantined {
		return
	}
	rule, message := "unreadable record", ""
	if r, err := causes.RecordOf(&l.node); err == nil {
		rule, message = r.Taint.Rule, r.Decisive().Message
	}
	l.alarms = append(l.alarms, alarm{"action", rule, l.during, l.name, message})
	l.node.Labels, l.node.Annotations, l.node.Spec.Taints = nil, nil, nil
}

// play plays a noise to its end, and an hour more.
func (l *life) play(ctx context.Context, n *noise, r *rand.Rand) error {
	l.during = n.name
	words := []string{"$PID", strconv.Itoa(100000 + r.IntN(3000000))}
	if len(l.gpus) > 0 {
		words = append(words, "$GPU", l.gpus[r.IntN(len(l.gpus))])
	}
	concerned := l.concernedBy(n)
	for _, s := range n.steps {
		if err := l.step(ctx, s, words, concerned); err != nil {
			return fmt.Errorf("%s: %w", n.name, err)
		}
	}
	for _, pause := range []time.Duration{time.Second, time.Minute, 10 * time.Minute, time.Hour} {
		l.now = l.now.Add(pause)
		if err := l.look(ctx, concerned); err != nil {
			return err
		}
	}
	return nil
}

// concernedBy returns which checks read what the noise changes.
func (l *life) concernedBy(n *noise) func(check) bool {
	return func(c check) bool {
		return slices.ContainsFunc(n.steps, func(s step) bool {
			file, ok := l.find(s.file)
			return s.file != "" && ok && c.reads(file) || s.verb == "reboot"
		})
	}
}

func (l *life) step(ctx context.Context, s step, words []string, concerned func(check) bool) error {
	file, _ := l.find(s.file)
	switch s.verb {
	case "log":
		var log strings.Builder
		log.WriteString(l.files[file])
		for i := range s.count {
			text := strings.NewReplacer(append(words, "$N", fmt.Sprintf("%x", i%16))...).Replace(s.text)
			fmt.Fprintf(&log, "[%12.6f] %s\n", l.now.Sub(l.boot).Seconds(), text)
			l.now = l.now.Add(s.every)
		}
		l.files[file] = log.String()
	case "edit":
		l.keep(file)
		l.files[file] = strings.Replace(l.files[file], s.text, s.new, 1)
	case "add":
		n, err := strconv.Atoi(strings.TrimSpace(l.files[file]))
		if err != nil {
			return err
		}
		l.files[file] = fmt.Sprintf("%d\n", n+s.count)
	case "undo":
		maps.Copy(l.files, l.edits)
		clear(l.edits)
	case "wait":
		if err := l.look(ctx, concerned); err != nil {
			return err
		}
		l.now = l.now.Add(s.every)
		return l.look(ctx, concerned)
	case "away", "reboot":
		return l.away(ctx, s)
	case "cordon", "uncordon":
		l.node.Spec.Unschedulable = s.verb == "cordon"
	case "label":
		l.node.Labels = maps.Clone(l.node.Labels)
		if l.node.Labels == nil {
			l.node.Labels = map[string]string{}
		}
		l.node.Labels[s.text] = s.new
		if s.new == "" {
			delete(l.node.Labels, s.text)
		}
	}
	return nil
}

func (l *life) keep(file string) {
	if _, ok := l.edits[file]; !ok {
		l.edits[file] = l.files[file]
	}
}

// away is a node that does not answer: after the grace period of kube-controller-manager, 50 s, it is not Ready.
func (l *life) away(ctx context.Context, s step) error {
	back := l.now.Add(s.every)
	for l.now = l.now.Add(50 * time.Second); l.now.Before(back); l.now = l.now.Add(10 * time.Second) {
		l.set(string(corev1.NodeReady), corev1.ConditionUnknown, "Kubelet stopped posting node status.")
		l.decide()
	}
	l.now = back
	if s.verb == "away" {
		l.set(string(corev1.NodeReady), corev1.ConditionTrue, "")
		return l.look(ctx, nil)
	}
	if err := os.RemoveAll(filepath.Join(l.dir, "state")); err != nil {
		return err
	}
	l.start()
	l.boot = l.now.Add(-time.Minute)
	for _, pause := range []time.Duration{0, time.Minute, 5 * time.Minute, 20 * time.Minute} {
		l.now = l.now.Add(pause)
		if err := l.look(ctx, nil); err != nil {
			return err
		}
	}
	return nil
}
