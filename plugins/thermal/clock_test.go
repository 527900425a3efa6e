package main

import (
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/pitcrew-dev/pitcrew/internal/nvml/nvmltest"
)

// smi is what a GPU answers whose `nvidia-smi -q` is in a file of testdata.
func smi(t *testing.T, file string, gpu int) string {
	t.Helper()
	data, err := os.ReadFile("testdata/" + file)
	if err != nil {
		t.Fatal(err)
	}
	number := func(pattern string) string {
		m := regexp.MustCompile(pattern).FindSubmatch(data)
		if m == nil {
			t.Fatalf("%s has no %s", file, pattern)
		}
		return string(m[1])
	}
	reasons := 0
	for bit := range 9 {
		if number(words(1 << bit)[len("reasons of the driver: "):]+` +: (Not Active|Active)`) == "Active" {
			reasons |= 1 << bit
		}
	}
	return fmt.Sprintf("%d.reasons %d\n%[1]d.utilization %[3]s\n%[1]d.clock %[4]s\n%[1]d.max.clock %[5]s", gpu, reasons,
		number(`Gpu +: (\d+) %`), number(`(?s)    Clocks\n.*?SM +: (\d+) MHz`), number(`(?s)Max Clocks\n.*?SM +: (\d+) MHz`))
}

func TestLowClocks(t *testing.T) {
	n := nvmltest.New(t)
	low := smi(t, "low-clock.txt", 3)
	const found = "exit 1\nInspect gpu 0000:13:00: SM clock stays low while it is busy, "
	for name, test := range map[string]struct {
		say, percent, want string
		at                 map[int]string // what one look saw instead
	}{
		"low":                          {say: low, percent: "50", want: found + "reasons of the driver: SW Power Cap"},
		"not asked for":                {say: low, percent: "0"},
		"lower than asked for":         {say: low, percent: "10"},
		"not busy":                     {say: "3.utilization 94\n" + low, percent: "50"},
		"no utilization, as with MIG":  {say: "3.utilization -999\n" + low, percent: "50"},
		"no highest clock":             {say: "3.max.clock -999\n" + low, percent: "50"},
		"no reasons":                   {say: "3.reasons -999\n" + low, percent: "50", want: found + "the driver gives no reason"},
		"a power brake":                {say: "3.reasons 136\n" + low, percent: "50", want: found + "reasons of the driver: HW Slowdown, HW Power Brake Slowdown"},
		"a reason of one look":         {say: low, at: map[int]string{2: "3.reasons 6\n" + low}, percent: "50", want: found + "reasons of the driver: SW Power Cap"},
		"another reason in each":       {say: low, at: map[int]string{2: "3.reasons 2\n" + low}, percent: "50", want: found + "the driver gives no reason"},
		"one look at the full clock":   {say: low, at: map[int]string{1: "3.clock 1980\n" + low}, percent: "50"},
		"one look between two kernels": {say: low, at: map[int]string{3: "3.utilization 0\n" + low}, percent: "50"},
	} {
		t.Run(name, func(t *testing.T) {
			args := []string{"-min-clock", test.percent, "-state-dir", n.Path(strings.ReplaceAll(name, " ", "-"))}
			for look := range fewestLooks {
				n.Say(test.say)
				if other := test.at[look]; other != "" {
					n.Say(other)
				}
				want := "exit 0\n" + healthy
				if look == fewestLooks-1 && test.want != "" {
					want = test.want
				}
				n.Want(want, args...)
				later(t, args[3], 2*time.Minute)
			}
		})
	}
}

func TestAShortTimeAtALowClockIsNoFinding(t *testing.T) {
	n := nvmltest.New(t)
	n.Say(smi(t, "low-clock.txt", 3))
	for range 2 * fewestLooks {
		n.Want("exit 0\n"+healthy, "-min-clock", "50")
		later(t, n.State(), 30*time.Second)
	}
}

// What is not judged is not asked.
func TestClocksAreAskedOnRequest(t *testing.T) {
	n := nvmltest.New(t)
	n.Say("3.error.nvmlDeviceGetClockInfo 999")
	n.Want("exit 0\n" + healthy)
	n.Want("exit 2\nunknown: gpu 0000:13:00: SM clock: Unknown Error", "-min-clock", "50")
}
