package repairresult_test

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/pitcrew-dev/pitcrew/internal/repairresult"
)

var refused = repairresult.Result{
	Result: repairresult.Refused, Message: "pod ml/train-0 (python, pid 71) holds a GPU", GPUs: []string{"0000:4e:00"},
	Holders: []repairresult.Holder{{PID: 71, Command: "python", Pod: "ml/train-0"}, {Pod: "ml/train-1"}},
	Stopped: []string{"nvidia-persistenced.service"}, BootID: "b",
}

const refusedLine = `{"result":"refused","message":"pod ml/train-0 (python, pid 71) holds a GPU","gpus":["0000:4e:00"],` +
	`"holders":[{"pid":71,"command":"python","pod":"ml/train-0"},{"pod":"ml/train-1"}],"stopped":["nvidia-persistenced.service"],"bootID":"b"}`

func write(t *testing.T, r repairresult.Result) string {
	t.Helper()
	log := filepath.Join(t.TempDir(), "log")
	if err := os.WriteFile(log, []byte("what was there before, and it was longer than what comes"+strings.Repeat(".", 2*repairresult.MaxBytes)), 0o600); err != nil {
		t.Fatal(err)
	}
	var stdout bytes.Buffer
	if err := r.Write(&stdout, log); err != nil {
		t.Fatal(err)
	}
	message, err := os.ReadFile(log)
	if err != nil || string(message) != stdout.String() {
		t.Errorf("%v, the termination message is %q, stdout %q", err, message, stdout.String())
	}
	return stdout.String()
}

func TestWhatIsWrittenIsReadBack(t *testing.T) {
	line := write(t, refused)
	if line != refusedLine+"\n" {
		t.Errorf("wrote %s want %s", line, refusedLine)
	}
	got, err := repairresult.Parse(line)
	if diff := cmp.Diff(refused, got); err != nil || diff != "" {
		t.Errorf("%v\n%s", err, diff)
	}
}

func TestALongResultIsCutAndStaysAResult(t *testing.T) {
	for name, r := range map[string]repairresult.Result{
		"holders": {Holders: make([]repairresult.Holder, 4000)},
		"message": {Message: strings.Repeat("<\u00e9\x00", 4000)},
		"stopped": {Stopped: []string{strings.Repeat("u", 5000)}, BootID: "b"},
		"gpus":    {GPUs: []string{"a", strings.Repeat("g", 5000)}},
		"boot":    {BootID: strings.Repeat("b", 5000)},
	} {
		r.Result = repairresult.Failed
		if r.Message == "" {
			r.Message = "m"
		}
		line := write(t, r)
		got, err := repairresult.Parse(line)
		if err != nil || len(line) > repairresult.MaxBytes || got.Message == "" {
			t.Errorf("%s: %d bytes, %v", name, len(line), err)
		}
		if name == "gpus" && !cmp.Equal(got.GPUs, []string{"a"}) {
			t.Errorf("all GPUs are cut: %q", got.GPUs)
		}
		if name == "holders" && len(got.Holders) < 1000 {
			t.Errorf("%d holders are left", len(got.Holders))
		}
	}
}

func TestWhatIsNoResultIsAnError(t *testing.T) {
	for message, want := range map[string]string{
		"":                                      `"" is not a result: unexpected end of JSON input`,
		"bash: no such file":                    `is not a result: invalid character`,
		refusedLine + refusedLine:               `is not a result: invalid character`,
		`{"message":"m"}`:                       `has the unknown result ""`,
		`{"result":"great","message":"m"}`:      `has the unknown result "great"`,
		`{"result":"done"}`:                     `has no message`,
		`{"result":"done","message":" \n"}`:     `has no message`,
		`{"result":"done","message":["m"]}`:     `is not a result: json: cannot unmarshal array`,
		strings.Repeat(" ", 4096) + refusedLine: fmt.Sprintf("a result of %d bytes, at most 4096", 4096+len(refusedLine)),
	} {
		if got, err := repairresult.Parse(message); err == nil || !strings.Contains(err.Error(), want) || len(err.Error()) > 300 {
			t.Errorf("%.60q is %v, %v, want %s", message, got, err, want)
		}
	}
}

func TestUnknownKeysAreIgnoredAndTextsBecomeOneLine(t *testing.T) {
	got, err := repairresult.Parse(`{"result":"done","message":" a\nb\u001b[31m\u202e ","new":{"x":1},"holders":[{"pod":"n\n"}],"gpus":["g\u0000"],"stopped":["s\t"]}`)
	want := repairresult.Result{
		Result: repairresult.Done, Message: "a b?[31m?", Holders: []repairresult.Holder{{Pod: "n"}}, GPUs: []string{"g?"}, Stopped: []string{"s"},
	}
	if diff := cmp.Diff(want, got); err != nil || diff != "" {
		t.Errorf("%v\n%s", err, diff)
	}
}

func TestExitCodes(t *testing.T) {
	for kind, want := range map[repairresult.Kind]int{
		repairresult.Done: 0, repairresult.Healthy: 0, repairresult.Problem: 0, repairresult.Failed: 1, repairresult.Refused: 2, "": 1,
	} {
		if got := kind.ExitCode(); got != want {
			t.Errorf("%q exits %d, want %d", kind, got, want)
		}
	}
}

func TestHoldersAreNamed(t *testing.T) {
	for want, h := range map[string]repairresult.Holder{
		"pod ml/train-0 (python, pid 71)": {PID: 71, Command: "python", Pod: "ml/train-0"},
		"python, pid 71":                  {PID: 71, Command: "python"},
		"pod ml/train-0":                  {Pod: "ml/train-0"},
	} {
		if got := h.String(); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}

func TestOutsideOfAPodThereIsNoTerminationMessage(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	for _, log := range []string{"", path} {
		var stdout bytes.Buffer
		if err := refused.Write(&stdout, log); err != nil || stdout.String() != refusedLine+"\n" {
			t.Errorf("%q: %v, %q", log, err, stdout.String())
		}
	}
	if _, err := os.Stat(path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("it was created: %v", err)
	}
	// A termination message that cannot be written is an error, and the line is written all the same.
	var stdout bytes.Buffer
	if err := refused.Write(&stdout, t.TempDir()); err == nil || stdout.Len() == 0 {
		t.Errorf("%v, %q", err, stdout.String())
	}
}

func FuzzParse(f *testing.F) {
	f.Add(refusedLine)
	f.Add(`{"result":"done","message":"\ud800"}`)
	f.Fuzz(func(t *testing.T, message string) {
		r, err := repairresult.Parse(message)
		if err != nil {
			return
		}
		var line bytes.Buffer
		if err := r.Write(&line, ""); err != nil {
			t.Fatal(err)
		}
		if _, err := repairresult.Parse(line.String()); err != nil {
			t.Errorf("what was read is written as %q: %v", line.String(), err)
		}
	})
}
