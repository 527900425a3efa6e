package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/pitcrew-dev/pitcrew/internal/npd/npdtest"
)

// asPlugin makes the test binary run as the plugin, so that no test has to build it.
const asPlugin = "TEST_PODLOG"

func TestMain(m *testing.M) {
	if os.Getenv(asPlugin) != "" {
		main()
	}
	os.Exit(m.Run())
}

func TestGolden(t *testing.T) { npdtest.Golden(t) }

const (
	fine = "exit 0\nno GPU fault in the logs of the watched namespaces\n"
	sick = "exit 1\nInspect pod default/train-0: uncorrectable ECC error\n"

	eccError = "RuntimeError: CUDA error: uncorrectable ECC error encountered"
	lostGPU  = "nvidia-smi: Unable to determine the device handle for GPU0000:4E:00.0: GPU is lost. Reboot the system to recover this GPU"
)

// node has pod logs, a boot and a state directory that the plugin runs on.
type node struct {
	t   *testing.T
	dir string
}

func newNode(t *testing.T) *node {
	t.Setenv(asPlugin, "1")
	n := &node{t: t, dir: t.TempDir()}
	n.boot("first", 24*time.Hour)
	if err := os.Mkdir(filepath.Join(n.dir, "pods"), 0o755); err != nil {
		t.Fatal(err)
	}
	return n
}

func (n *node) boot(id string, uptime time.Duration) {
	n.t.Helper()
	n.write("proc/sys/kernel/random/boot_id", id+"\n")
	n.write("proc/uptime", fmt.Sprintf("%.2f 0.00\n", uptime.Seconds()))
}

func (n *node) path(name string) string { return filepath.Join(n.dir, filepath.FromSlash(name)) }

func (n *node) write(name, content string) {
	n.t.Helper()
	write(n.t, n.path(name), os.O_TRUNC, content)
}

// log appends lines of this moment to a log.
func (n *node) log(name string, texts ...string) {
	n.t.Helper()
	for _, text := range texts {
		write(n.t, n.path(name), os.O_APPEND, cri(time.Now(), "F", text))
	}
}

func cri(at time.Time, tag, text string) string {
	return fmt.Sprintf("%s stderr %s %s\n", at.Format(time.RFC3339Nano), tag, text)
}

func write(t *testing.T, path string, mode int, content string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|mode, 0o644)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.WriteString(content); err != nil {
		t.Fatal(err)
	}
}

func (n *node) rename(from, to string) {
	n.t.Helper()
	if err := os.Rename(n.path(from), n.path(to)); err != nil {
		n.t.Fatal(err)
	}
}

func (n *node) run(args ...string) string {
	n.t.Helper()
	return npdtest.Run(n.t, "/proc/self/exe", append([]string{
		"-pod-logs", n.path("pods"), "-procfs", n.path("proc"), "-state-dir", n.path("state"), "-namespaces", "default",
	}, args...)...)
}

func (n *node) want(want string, args ...string) {
	n.t.Helper()
	if got := n.run(args...); got != want {
		n.t.Errorf("got  %swant %s", got, want)
	}
}

func (n *node) dump(args ...string) (s snapshot) {
	n.t.Helper()
	out := strings.TrimPrefix(n.run(append(args, "-dump")...), "exit 0\n")
	if err := json.Unmarshal([]byte(out), &s); err != nil {
		n.t.Fatalf("%v\n%s", err, out)
	}
	return s
}

// count returns how many lines the only episode has.
func (n *node) count() int {
	n.t.Helper()
	s := n.dump()
	if len(s.Episodes) != 1 {
		n.t.Fatalf("episodes %+v, want one", s.Episodes)
	}
	return s.Episodes[0].Count
}

const (
	log0  = "pods/default_train-0-x7k2p_0f2c/main/0.log"
	other = "pods/default_train-0-b4n9z_77aa/main/0.log"
)

func TestAFaultStaysUntilTheNextBootThoughItsPodIsGone(t *testing.T) {
	n := newNode(t)
	n.log(log0, "step 1")
	n.want(fine)
	n.log(log0, eccError)
	n.want(sick)
	n.want(sick)
	if err := os.RemoveAll(n.path("pods/default_train-0-x7k2p_0f2c")); err != nil {
		t.Fatal(err)
	}
	n.want(sick)
	n.log(other, "step 1") // the same workload, made anew
	n.want(sick)
	n.boot("second", 24*time.Hour)
	n.want(fine)
}

func TestTheMessageIsTheSameForEveryRestart(t *testing.T) {
	n := newNode(t)
	n.log(log0, eccError)
	n.log(other, eccError)
	n.log("pods/default_train-0-b4n9z_77aa/main/1.log", eccError)
	n.want(sick)
}

func TestLinesOfAnEarlierBootCountForNothing(t *testing.T) {
	n := newNode(t)
	n.boot("second", time.Hour)
	write(t, n.path(log0), 0, cri(time.Now().Add(-2*time.Hour), "F", eccError))
	n.want(fine)
	write(t, n.path(log0), os.O_APPEND, cri(time.Now().Add(-time.Minute), "F", eccError))
	n.want(sick)
	if got := n.count(); got != 1 {
		t.Errorf("%d lines counted", got)
	}
}

func TestEachLineCountsOnce(t *testing.T) {
	n := newNode(t)
	for want := 1; want <= 3; want++ {
		n.log(log0, eccError)
		if got := n.count(); got != want {
			t.Errorf("%d lines counted, want %d", got, want)
		}
	}
}

func TestARotationLosesNothing(t *testing.T) {
	n := newNode(t)
	n.log(log0, "step 1", eccError)
	n.want(sick)
	n.log(log0, eccError)
	n.rename(log0, log0+".20261120-140000")
	n.log(log0, eccError)
	if got := n.count(); got != 3 {
		t.Errorf("%d lines counted, want 3", got)
	}
	// The next rotation compresses the one before.
	n.rename(log0+".20261120-140000", log0+".20261120-140000.gz")
	n.rename(log0, log0+".20261120-150000")
	n.log(log0, eccError)
	if got := n.count(); got != 4 {
		t.Errorf("%d lines counted, want 4", got)
	}
	if s := n.dump(); s.Lost != 0 {
		t.Errorf("%d logs lost", s.Lost)
	}
}

func TestALineThatIsStillBeingWrittenWaits(t *testing.T) {
	n := newNode(t)
	whole := cri(time.Now(), "F", eccError)
	write(t, n.path(log0), 0, whole[:60])
	n.want(fine)
	write(t, n.path(log0), os.O_APPEND, whole[60:])
	n.want(sick)
	if got := n.count(); got != 1 {
		t.Errorf("%d lines counted", got)
	}
}

func TestARotatedLogsLastPartIsMatchedAsItIs(t *testing.T) {
	n := newNode(t)
	write(t, n.path(log0), 0, cri(time.Now(), "P", eccError))
	n.want(fine) // its end may come
	n.rename(log0, log0+".20261120-140000")
	n.want(fine) // nothing new was written to it
	write(t, n.path(log0+".20261120-140000"), os.O_APPEND, cri(time.Now(), "P", " at step 7"))
	n.want(sick)
}

func TestATruncatedLogIsReadFromItsBeginning(t *testing.T) {
	n := newNode(t)
	n.log(log0, "step 1", "step 2", "step 3")
	n.want(fine)
	n.write(log0, "")
	n.log(log0, eccError)
	n.want(sick)
}

func TestALogThatLostItsEndIsReadFromItsBeginning(t *testing.T) {
	n := newNode(t)
	n.log(log0, "step 1", strings.Repeat("x", 1000))
	n.want(fine)
	whole, err := os.ReadFile(n.path(log0))
	if err != nil {
		t.Fatal(err)
	}
	firstLine, _, _ := strings.Cut(string(whole), "\n")
	if err := os.Truncate(n.path(log0), int64(len(firstLine)+1)); err != nil {
		t.Fatal(err)
	}
	n.log(log0, eccError)
	n.want(sick)
}

func TestALineThatIsFarTooLongIsPassedOver(t *testing.T) {
	n := newNode(t)
	n.log(log0, strings.Repeat("x", 3*bufferSize), eccError)
	n.want(sick)
}

func TestAnInodeUsedAgainIsAnotherLog(t *testing.T) {
	n := newNode(t)
	n.log(log0, "step 1")
	n.want(fine)
	// As long as before and more, and the same inode.
	n.write(log0, "")
	n.log(log0, eccError, "step 1", "step 2")
	n.want(sick)
}

func TestWhatAnotherNameHasIsNotReadTwice(t *testing.T) {
	n := newNode(t)
	n.log(log0, eccError)
	if err := os.Link(n.path(log0), n.path("pods/default_train-0-x7k2p_0f2c/main/1.log")); err != nil {
		t.Fatal(err)
	}
	if got := n.count(); got != 1 {
		t.Errorf("%d lines counted", got)
	}
}

func TestALinkOutOfTheRootIsRefused(t *testing.T) {
	n := newNode(t)
	n.log("outside/0.log", eccError)
	n.log("pods/default_good-0_1/main/0.log", "step 1")
	for name, link := range map[string][2]string{
		"absolute file":  {"pods/default_train-0_1/main/0.log", n.path("outside/0.log")},
		"relative file":  {"pods/default_train-0_1/main/0.log", "../../../outside/0.log"},
		"container":      {"pods/default_train-0_1/main", "../../outside"},
		"pod":            {"pods/default_train-0_1", "../outside"},
		"a file of proc": {"pods/default_train-0_1/main/0.log", "/proc/self/environ"},
	} {
		t.Run(name, func(t *testing.T) {
			path := n.path(link[0])
			if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.Symlink(link[1], path); err != nil {
				t.Fatal(err)
			}
			defer os.RemoveAll(n.path("pods/default_train-0_1"))
			n.want("exit 2\nunknown: pod default/train-0: path escapes from parent\n")
		})
	}
	n.want(fine)
}

func TestALinkWithinTheRootIsFollowed(t *testing.T) {
	n := newNode(t)
	n.log("pods/default_train-0_1/main/data", eccError)
	if err := os.Symlink("data", n.path("pods/default_train-0_1/main/0.log")); err != nil {
		t.Fatal(err)
	}
	n.want(sick)
}

func TestAFIFOHangsNothing(t *testing.T) {
	n := newNode(t)
	n.log(log0, eccError)
	if err := syscall.Mkfifo(n.path("pods/default_train-0-x7k2p_0f2c/main/1.log"), 0o600); err != nil {
		t.Fatal(err)
	}
	n.want(sick)
}

func TestWhatIsNoLogOfThisBootIsNotOpened(t *testing.T) {
	n := newNode(t)
	n.log(log0, "step 1")
	if err := os.Mkdir(n.path("pods/default_train-0-x7k2p_0f2c/main/1.log"), 0o700); err != nil {
		t.Fatal(err)
	}
	n.write("pods/default_train-0-x7k2p_0f2c/main/0.log.tmp", eccError)
	n.log("pods/default_train-0/main/0.log", eccError) // no uid: not the kubelet's
	const old = "pods/default_train-0-x7k2p_0f2c/main/2.log"
	n.write(old, "not of the CRI's form")
	before := time.Now().Add(-48 * time.Hour)
	if err := os.Chtimes(n.path(old), before, before); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("gone", n.path("pods/default_train-0-x7k2p_0f2c/main/3.log")); err != nil {
		t.Fatal(err)
	}
	n.want(fine)
}

func TestWhatCannotBeReadIsReportedOncePerWorkload(t *testing.T) {
	n := newNode(t)
	for _, name := range []string{log0, other, "pods/default_a_1/main/0.log"} {
		if err := os.MkdirAll(filepath.Dir(n.path(name)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink("/outside", n.path(name)); err != nil {
			t.Fatal(err)
		}
	}
	n.want("exit 2\nunknown: pod default/a, pod default/train-0: path escapes from parent\n")
}

func TestAFolderThatCannotBeReadForAWhileIsNotReadTwice(t *testing.T) {
	n := newNode(t)
	n.log(log0, eccError)
	n.want(sick)
	const folder = "pods/default_train-0-x7k2p_0f2c/main"
	n.rename(folder, "aside")
	if err := os.Symlink("/outside", n.path(folder)); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		n.want("exit 1\nInspect pod default/train-0: uncorrectable ECC error; pod default/train-0: not read: path escapes from parent\n")
	}
	if err := os.Remove(n.path(folder)); err != nil {
		t.Fatal(err)
	}
	n.rename("aside", folder)
	if got := n.count(); got != 1 {
		t.Errorf("%d lines counted", got)
	}
}

func TestALookIsBoundedAndTheNextGoesOn(t *testing.T) {
	n := newNode(t)
	limit := []string{"-max-bytes", fmt.Sprint(minBytes)}
	line := cri(time.Now(), "F", strings.Repeat("step ", 200))
	write(t, n.path(log0), 0, strings.Repeat(line, 3*minBytes/len(line))+cri(time.Now(), "F", eccError))
	n.log("pods/default_quiet-0_1/main/0.log", lostGPU)
	// The quiet pod does not wait for the chatty one.
	const quiet = "Inspect pod default/quiet-0: GPU is lost"
	n.want("exit 1\n"+quiet+"\n", limit...)
	first := n.dump(limit...)
	if first.Behind <= 0 || first.Behind > 2*minBytes {
		t.Errorf("%d bytes behind after two looks", first.Behind)
	}
	for s := first; s.Behind > 0; {
		next := n.dump(limit...)
		if next.Behind >= s.Behind {
			t.Fatalf("no progress: %d bytes behind, then %d", s.Behind, next.Behind)
		}
		s = next
	}
	n.want("exit 1\n"+quiet+"; pod default/train-0: uncorrectable ECC error\n", limit...)
	if s := n.dump(limit...); s.Lost > 0 {
		t.Errorf("%d logs lost", s.Lost)
	}
	n.want("exit 2\nunknown: -max-bytes 1 is less than 4194304\n", "-max-bytes", "1")
}

func TestALogThatWasGoneTooSoonIsReported(t *testing.T) {
	n := newNode(t)
	line := cri(time.Now(), "F", strings.Repeat("step ", 200))
	write(t, n.path(log0), 0, strings.Repeat(line, 2*minBytes/len(line)))
	n.want(fine, "-max-bytes", fmt.Sprint(minBytes))
	if err := os.Remove(n.path(log0)); err != nil {
		t.Fatal(err)
	}
	n.want(fine, "-min-repair", "Monitor") // it may be between two names
	const lost = "exit 1\nMonitor pod logs: some were gone before they were read to their end\n"
	n.want(lost, "-min-repair", "Monitor")
	n.want(fine)
	n.want("exit 0\ncleared pod logs\n", "-clear")
	n.want(fine, "-min-repair", "Monitor")
}

func TestALogThatWasTruncatedTooSoonIsReported(t *testing.T) {
	n := newNode(t)
	line := cri(time.Now(), "F", strings.Repeat("step ", 200))
	write(t, n.path(log0), 0, strings.Repeat(line, 2*minBytes/len(line)))
	n.want(fine, "-max-bytes", fmt.Sprint(minBytes))
	n.write(log0, "")
	n.log(log0, "step 1")
	n.want("exit 1\nMonitor pod logs: some were gone before they were read to their end\n", "-min-repair", "Monitor")
}

func TestALineWithALiteralInAnotherFormIsReported(t *testing.T) {
	n := newNode(t)
	n.log(log0, "step 1")
	write(t, n.path(log0), os.O_APPEND, eccError+"\n")
	n.want("exit 1\nMonitor pod logs: lines that are not of the CRI's form were passed over\n", "-min-repair", "Monitor")
}

func TestClearForgetsWhatWasWrittenBeforeIt(t *testing.T) {
	n := newNode(t)
	n.log(log0, eccError)
	n.want(sick)
	n.want("exit 0\nnothing to clear\n", "-clear", "pod", "default/eval")
	n.want(sick)
	n.log("pods/default_eval_1/main/0.log", lostGPU)
	n.want("exit 0\ncleared pod default/eval\n", "-clear", "default/eval") // a fault that no run has read yet
	n.want(sick)
	n.want("exit 0\ncleared pod default/train-0\n", "-clear")
	n.want(fine)
	n.log(log0, eccError)
	n.want(sick)
}

func TestClearReadsMoreThanOneLookDoes(t *testing.T) {
	n := newNode(t)
	line := cri(time.Now(), "F", strings.Repeat("step ", 200))
	write(t, n.path(log0), 0, strings.Repeat(line, 3*minBytes/len(line))+cri(time.Now(), "F", eccError))
	n.want("exit 0\ncleared pod default/train-0\n", "-max-bytes", fmt.Sprint(minBytes), "-clear")
	n.want(fine)
}

func TestARunThatWatchesLessTakesNothingAway(t *testing.T) {
	n := newNode(t)
	n.log(log0, eccError)
	n.want(sick)
	n.want("exit 1\nInspect pod default/train-0: uncorrectable ECC error\n", "-namespaces", "other")
	n.want("exit 1\nInspect pod default/train-0: uncorrectable ECC error\n", "-namespaces", "other")
	if got := n.count(); got != 1 {
		t.Errorf("%d lines counted: the log was read again", got)
	}
}

func TestARemovedPatternCountsNoMore(t *testing.T) {
	n := newNode(t)
	n.log(log0, eccError)
	n.want(sick)
	n.write("patterns", "name,repair,count,role,text,pattern,source\nlost,Inspect,1,hardware,GPU is lost,GPU is lost,NVML\n")
	n.want(fine, "-patterns", n.path("patterns"))
	n.want(sick)
}

func TestACorruptStateIsRebuiltFromTheLogs(t *testing.T) {
	n := newNode(t)
	n.log(log0, eccError)
	n.want(sick)
	n.write("state/podlog.json", `{"v":1,"bootID":"first","state":{"fi`)
	n.want(sick)
	if _, err := os.Stat(n.path("state/podlog.json.corrupt")); err != nil {
		t.Error("the corrupt file was not kept aside:", err)
	}
}

func TestAnUnwritableStateDirectory(t *testing.T) {
	n := newNode(t)
	n.log(log0, eccError)
	n.write("file", "")
	n.want(sick, "-state-dir", n.path("file"))
}

func TestADumpIsJudgedTheSame(t *testing.T) {
	n := newNode(t)
	n.log(log0, eccError)
	n.write("dump.json", strings.TrimPrefix(n.run("-dump"), "exit 0\n"))
	n.want(sick, "-snapshot", n.path("dump.json"), "-pod-logs", "/nonexistent")
}
