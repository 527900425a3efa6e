// Package repairresult is the result of the program repair, which works on a node: one line of JSON, the last line on its standard
// output and its whole termination message.
//
//	{"result":"refused","message":"...","gpus":["0000:4e:00"],"holders":[{"pid":71,"command":"python","pod":"ml/train-0"}]}
package repairresult

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"unicode"
)

// MaxBytes is the longest termination message that the kubelet takes from a container.
const MaxBytes = 4096

// TerminationLog is where the kubelet reads the termination message of a container, unless its pod says otherwise.
const TerminationLog = "/dev/termination-log"

// Kind is what became of a run.
type Kind string

// The kinds of results.
const (
	// Done: a reset or a reboot was made, or is not needed any more.
	Done Kind = "done"
	// Healthy and Problem: a check has run, and what it found.
	Healthy Kind = "healthy"
	Problem Kind = "problem"
	// Refused: a precondition is not met, and nothing was changed. It may be met later.
	Refused Kind = "refused"
	// Failed: it could not do its work.
	Failed Kind = "failed"
)

// ExitCode is the exit code of the program: 0 if it has done its work, whatever a check has found, 1 if it failed, 2 if it refused.
func (k Kind) ExitCode() int {
	switch k {
	case Done, Healthy, Problem:
		return 0
	case Refused:
		return 2
	default:
		return 1
	}
}

// Result is the result of one run.
type Result struct {
	Result Kind `json:"result"`
	// Message is one sentence for people.
	Message string `json:"message"`
	// GPUs are the PCI addresses, such as 0000:4e:00, of what was reset.
	GPUs []string `json:"gpus,omitempty"`
	// Holders are the processes and pods that keep a device open, the reason of a refusal. A long list is cut.
	Holders []Holder `json:"holders,omitempty"`
	// Stopped are the units of systemd that were stopped and started again.
	Stopped []string `json:"stopped,omitempty"`
	// Bundle is the name of the bundle of evidence that was written.
	Bundle string `json:"bundle,omitempty"`
	// BootID is the boot in which it ran.
	BootID string `json:"bootID,omitempty"`
}

// Holder has a device: a process that keeps it open, or a pod to which the kubelet has given it.
type Holder struct {
	// PID is the process on the node, 0 if only the pod is known.
	PID int `json:"pid,omitempty"`
	// Command is the name of the process.
	Command string `json:"command,omitempty"`
	// Pod is namespace/name, or "uid <uid>" where the name is not known; empty for a process outside of pods.
	Pod string `json:"pod,omitempty"`
}

// String is how messages name it, such as "pod ml/train-0 (python, pid 71)".
func (h Holder) String() string {
	process := ""
	if h.PID > 0 {
		process = fmt.Sprintf("%s, pid %d", h.Command, h.PID)
	}
	switch {
	case h.Pod == "":
		return process
	case process == "":
		return "pod " + h.Pod
	default:
		return fmt.Sprintf("pod %s (%s)", h.Pod, process)
	}
}

// Parse reads a termination message. It is input: whoever may write it can write anything. Unknown keys are ignored, everything else
// that is not a result is an error. Characters that are not printable are replaced by "?".
func Parse(message string) (Result, error) {
	if len(message) > MaxBytes {
		return Result{}, fmt.Errorf("a result of %d bytes, at most %d", len(message), MaxBytes)
	}
	var r Result
	if err := json.Unmarshal([]byte(message), &r); err != nil {
		return Result{}, fmt.Errorf("%.80q is not a result: %w", message, err)
	}
	switch r.Result {
	case Done, Healthy, Problem, Refused, Failed:
	default:
		return Result{}, fmt.Errorf("%.80q has the unknown result %.20q", message, r.Result)
	}
	r.clean()
	if r.Message == "" {
		return Result{}, fmt.Errorf("%.80q has no message", message)
	}
	return r, nil
}

// clean makes every text one printable line.
func (r *Result) clean() {
	r.Message, r.Bundle, r.BootID = clean(r.Message), clean(r.Bundle), clean(r.BootID)
	for i := range r.GPUs {
		r.GPUs[i] = clean(r.GPUs[i])
	}
	for i := range r.Stopped {
		r.Stopped[i] = clean(r.Stopped[i])
	}
	for i := range r.Holders {
		r.Holders[i].Command, r.Holders[i].Pod = clean(r.Holders[i].Command), clean(r.Holders[i].Pod)
	}
}

func clean(s string) string {
	s = strings.ToValidUTF8(s, "?")
	return strings.TrimSpace(strings.Map(func(c rune) rune {
		switch {
		case c == '\n' || c == '\t':
			return ' '
		case !unicode.IsPrint(c):
			return '?'
		}
		return c
	}, s))
}

// Write writes the result as one line to standard output and to the file of the termination message, "" for none. What does not fit
// [MaxBytes] is cut: lists at their ends, then the message. Both are written, also if one cannot be.
func (r Result) Write(stdout io.Writer, terminationLog string) error {
	line := append(r.encode(), '\n')
	_, err := stdout.Write(line)
	if err != nil {
		err = fmt.Errorf("write the result: %w", err)
	}
	if terminationLog == "" {
		return err
	}
	// The kubelet has made the file. One that does not exist is no one's termination message.
	log, openErr := os.OpenFile(terminationLog, os.O_WRONLY|os.O_TRUNC, 0)
	if errors.Is(openErr, os.ErrNotExist) {
		return err
	}
	if openErr == nil {
		_, openErr = log.Write(line)
		openErr = errors.Join(openErr, log.Close())
	}
	if openErr != nil {
		openErr = fmt.Errorf("write the termination message: %w", openErr)
	}
	return errors.Join(err, openErr)
}

func (r Result) encode() []byte {
	// In a copy: the caller keeps its lists.
	r.GPUs, r.Holders, r.Stopped = append([]string{}, r.GPUs...), append([]Holder{}, r.Holders...), append([]string{}, r.Stopped...)
	r.clean()
	for {
		// Strings and numbers can always be encoded.
		text, _ := json.Marshal(r)
		message := []rune(r.Message)
		switch {
		case len(text) < MaxBytes:
			return text
		case len(message) > 500:
			r.Message = string(message[:499]) + "…"
		case len(r.Holders) > 0:
			r.Holders = r.Holders[:len(r.Holders)-1]
		case len(r.Stopped) > 0:
			r.Stopped = r.Stopped[:len(r.Stopped)-1]
		case len(r.GPUs) > 0:
			r.GPUs = r.GPUs[:len(r.GPUs)-1]
		default:
			r.BootID = ""
		}
	}
}
