package textlog_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/pitcrew-dev/pitcrew/internal/kmsg"
	"github.com/pitcrew-dev/pitcrew/internal/kmsg/textlog"
	"github.com/pitcrew-dev/pitcrew/internal/xid"
)

// forms are the text forms of one kernel record, by the program and options that print them. %s is the text.
var forms = map[string]string{
	"dmesg":                         "[ 1843.308145] %s",
	"dmesg, a long uptime":          "[1234567.308145] %s",
	"dmesg -t":                      "%s",
	"dmesg -d":                      "[ 1843.308145 <    0.000912>] %s",
	"dmesg -H, the first line":      "[Aug10 11:02] %s",
	"dmesg -H, the next ones":       "[  +0.009910] %s",
	"dmesg -e":                      "[Aug10 11:02] %s",
	"dmesg -T":                      "[Tue Jan 13 04:33:08 2026] %s",
	"dmesg -T, German":              "[Di Jan 13 04:33:08 2026] %s",
	"dmesg -T, French":              "[mar. janv. 13 04:33:08 2026] %s",
	"dmesg -T, Chinese":             "[二 1月 13 04:33:08 2026] %s",
	"dmesg -T -d":                   "[Tue Jan 13 04:33:08 2026 <    0.000912>] %s",
	"dmesg -x":                      "kern  :err   : [ 1843.308145] %s",
	"dmesg -x -T":                   "kern  :warn  : [Tue Jan 13 04:33:08 2026] %s",
	"dmesg -x -H":                   "kern  :err   : [  +0.009910] %s",
	"dmesg --time-format iso":       "2026-01-13T04:33:08,859532+00:00 %s",
	"dmesg -x --time-format iso":    "kern  :err   : 2026-01-13T04:33:08,859532+00:00 %s",
	"dmesg -r":                      "<3>[ 1843.308145] %s",
	"dmesg -L=always":               "\x1b[32m[ 1843.308145] \x1b[0m\x1b[31m%s\x1b[0m",
	"printk caller, dmesg":          "[ 1843.308145] [    T291] %s",
	"printk caller, serial console": "[ 1843.308145][  T291] %s",
	"printk caller, interrupt":      "[ 1843.308145][    C3] %s",
	"busybox dmesg":                 "<4>[ 1843.308145] %s",
	"talosctl dmesg":                "10.0.0.17: kern: warning: [2026-04-22T21:30:51.870495804Z]: %s",
	"talosctl dmesg, no node":       "kern: err: [2026-04-22T21:30:51.870495804Z]: %s",
	"journalctl -k":                 "Jan 13 04:33:08 node-1 kernel: %s",
	"journalctl -k, one digit":      "Jan  3 04:33:08 node-1 kernel: %s",
	"journalctl -k, German":         "Jän 13 04:33:08 node-1 kernel: %s",
	"journalctl -k --no-hostname":   "Jan 13 04:33:08 kernel: %s",
	"journalctl -o short-precise":   "Jan 13 04:33:08.859532 node-1 kernel: %s",
	"journalctl -o short-full":      "Tue 2026-01-13 04:33:08 CET node-1 kernel: %s",
	"journalctl -o short-full, UTC": "Tue 2026-01-13 04:33:08 UTC node-1.example.com kernel: %s",
	"journalctl -o short-iso":       "2026-01-13T04:33:08+0100 node-1 kernel: %s",
	"journalctl -o short-iso, 254":  "2026-01-13T04:33:08+01:00 node-1 kernel: %s",
	"journalctl -o short-iso-prec":  "2026-01-13T04:33:08.859532+0100 node-1 kernel: %s",
	"journalctl -o short-unix":      "1768275188.859532 node-1 kernel: %s",
	"journalctl -o short-monotonic": "[ 1843.308145] node-1 kernel: %s",
	"journalctl -o json":            `{"_TRANSPORT":"kernel","SYSLOG_FACILITY":"0","SYSLOG_IDENTIFIER":"kernel","_SOURCE_MONOTONIC_TIMESTAMP":"1843308145","MESSAGE":"%s"}`,
	"journalctl -o cat":             "%s",
	"/var/log/kern.log":             "Jan 13 04:33:08 node-1 kernel: [ 1843.308145] %s",
	"rsyslog with ISO times":        "2026-01-13T04:33:08.859532+01:00 node-1 kernel: [ 1843.308145] %s",
	"SLES 15":                       "2026-01-13T04:33:08.859532+01:00 node-1 kernel: [ 1843.308145][  T291] %s",
	"RFC 5424":                      "<3>1 2026-01-13T04:33:08.859532Z node-1 kernel - - - %s",
	"RFC 5424 with data":            `<3>1 2026-01-13T04:33:08Z node-1 kernel - - [meta sequenceId="29"] %s`,
	"RFC 3164":                      "<3>Jan 13 04:33:08 node-1 kernel: %s",
	"kubectl logs --timestamps":     "2026-01-13T04:33:08.859532123Z [ 1843.308145] %s",
	"an indented paste":             "    [ 1843.308145] %s",
	"a tabbed paste":                "\t[ 1843.308145] %s",
	"a quoted mail":                 "> [ 1843.308145] %s",
	"a mail quoted twice":           "> > Jan 13 04:33:08 node-1 kernel: %s",
	"a shell's quotes":              `"[ 1843.308145] %s"`,
	"journalctl -o short-delta":     "[ 1843.308145 <    0.000912 >] node-1 kernel: %s",
	"short-delta, the first line":   "[ 1843.308145                ] node-1 kernel: %s",
	"cat /dev/kmsg":                 "3,1234,1843308145,-;%s",
	"/dev/kmsg with the caller":     "4,1234,1843308145,-,caller=T291;%s",
	"netconsole, extended":          "6.8.0-1018-aws,3,1234,1843308145,-;%s",
	"syslog without a blank":        "Jan 13 04:33:08 node-1 kernel:[ 1843.308145] %s",
	"zeros of a crash":              "\x00\x00\x00Jan 13 04:33:08 node-1 kernel: %s",
	"a byte order mark":             "\ufeff[ 1843.308145] %s",
}

func TestEveryFormOfAKernelLogIsRead(t *testing.T) {
	bodies := map[string]string{
		"Xid":            "NVRM: Xid (PCI:0000:4e:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.",
		"SXid":           "nvidia-nvswitch0: SXid (PCI:0000:c3:00.0): 20034, Fatal, Link 29 LTSSM Fault Up",
		"RmInitAdapter":  "NVRM: GPU 0000:01:00.0: RmInitAdapter failed! (0x62:0x40:2119)",
		"off the bus":    "NVRM: GPU at PCI:0000:4e:00: fallen off the bus and is not responding to commands.",
		"recovery (154)": "NVRM: Xid (PCI:0000:0b:00): 154, GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)",
	}
	for name, form := range forms {
		for what, body := range bodies {
			line := textlog.Parse(fmt.Sprintf(form, body) + "\r\n")
			_, isEvent := xid.Parse(kmsg.Unescape(line.Body))
			_, wanted := xid.Parse(body)
			if line.Body != body || line.User || isEvent != wanted {
				t.Errorf("%s, %s: %+v", name, what, line)
			}
		}
	}
}

// What a user can write, in the forms that say who wrote it, is never the kernel's. Where the form does not say it, it is unsure.
func TestNoUserIsTakenForTheKernel(t *testing.T) {
	const body = "NVRM: Xid (PCI:0000:4e:00): 79, GPU has fallen off the bus."
	for form, unsure := range map[string]bool{
		"Jan 13 04:33:08 node-1 app[12]: %s":                                  false,
		"Jan 13 04:33:08 node-1 %s":                                           false, // logger -t NVRM
		"Jan 13 04:33:08 %s":                                                  true,  // the same with --no-hostname
		"2026-01-13T04:33:08+0100 node-1 %s":                                  false,
		"2026-01-13T04:33:08+0100 %s":                                         true,
		"1768275188.859532 node-1 app: %s":                                    false,
		"Tue 2026-01-13 04:33:08 CET node-1 app[1]: %s":                       false,
		"user  :err   : [ 1843.308145] %s":                                    false,
		"10.0.0.17: user: warning: [2026-04-22T21:30:51.870495804Z]: %s":      false,
		"12,1234,1843308145,-;%s":                                             false,
		"Jan 13 04:33:08 node-1 kern.err kernel: %s":                          true,
		"Jan 13 04:33:08 PM node-1 kernel: %s":                                true,
		"Jan 13 04:33:08 node-1 kernel[77]: %s":                               false,
		"2026-01-13T04:33:08.859532123Z stderr F %s":                          false,
		"<11>[ 1843.308145] %s":                                               false,
		"<11>1 2026-01-13T04:33:08Z node-1 kernel - - - %s":                   false,
		"<3>1 2026-01-13T04:33:08Z node-1 app - - - %s":                       false,
		`{"_TRANSPORT":"stdout","SYSLOG_IDENTIFIER":"kernel","MESSAGE":"%s"}`: false,
		`{"_TRANSPORT":"kernel","SYSLOG_FACILITY":"1","MESSAGE":"%s"}`:        false,
	} {
		line := textlog.Parse(fmt.Sprintf(form, body))
		if _, isEvent := xid.Parse(line.Body); isEvent && !line.User || line.Unsure != unsure {
			t.Errorf("%s: %+v", form, line)
		}
	}
	for _, text := range []string{
		"MESSAGE=" + body, `	"MESSAGE" : "` + body + `",`, "something: " + body, "13.01.2026 04:33 | " + body, "node-1 | " + body, "E0113 04:33:08.8 1 x.go:1] " + body,
	} {
		line := textlog.Parse(text)
		if _, isEvent := xid.Parse(line.Body); isEvent || !line.Unsure || !xid.HasDriverWords(line.Body) {
			t.Errorf("%q: %+v", text, line)
		}
	}
	if line := textlog.Parse("[ 1.5] audit: msg='" + body + "'"); strings.HasPrefix(line.Body, "NVRM") || line.Unsure {
		t.Errorf("%+v", line)
	}
}

func TestParse(t *testing.T) {
	const body = "NVRM: Xid (PCI:0000:4e:00): 79, x"
	for prefix, want := range map[string]textlog.Line{
		"":                                {},
		"[  130.456250] ":                 {At: 130456250 * time.Microsecond, HasTime: true},
		"[  130.456250] [   T1946] ":      {At: 130456250 * time.Microsecond, HasTime: true},
		"Jan  2 03:04:05 node-1 kernel: ": {At: 27*time.Hour + 4*time.Minute + 5*time.Second, HasTime: true},
		"Jan  2 03:04:05 node-1 kernel: [  130.456250] ":   {At: 130456250 * time.Microsecond, HasTime: true},
		"2026-01-02T03:04:05.000000+01:00 node-1 kernel: ": {At: 27*time.Hour + 4*time.Minute + 5*time.Second, HasTime: true},
		"2026-01-02T03:04:05+0100 node-1 kernel: ":         {At: 27*time.Hour + 4*time.Minute + 5*time.Second, HasTime: true},
		"[Fri Jan  2 03:04:05 2026] ":                      {At: 27*time.Hour + 4*time.Minute + 5*time.Second, HasTime: true},
		"kernel: ":                                         {},
		"<3>":                                              {},
		"<11>":                                             {User: true},
		"<3>[  130.456250] ":                               {At: 130456250 * time.Microsecond, HasTime: true},
	} {
		want.Body, want.Form = body, prefix != ""
		if got := textlog.Parse(prefix + body + "\r\n"); got != want {
			t.Errorf("%q: %+v, want %+v", prefix, got, want)
		}
	}
	for _, prefix := range []string{
		"Jan  2 03:04:05 node-1 app[12]: ", "something: ", "audit: msg='", "Jan  2 03:04:05 node-1 ", "kernel:kernel: ", "[x] ",
	} {
		if line := textlog.Parse(prefix + body); strings.HasPrefix(line.Body, "NVRM") && !line.User {
			t.Errorf("%q is taken for a kernel prefix", prefix)
		}
	}
}

// journalctl writes a message with a byte that is not printable as a list of bytes.
func TestAMessageAsBytes(t *testing.T) {
	const body = "NVRM: Xid (PCI:0000:4e:00): 79, pid=7, name=caf\xe9, GPU has fallen off the bus."
	line := textlog.Parse(fmt.Sprintf(`{"_TRANSPORT":"kernel","SYSLOG_IDENTIFIER":"kernel","MESSAGE":%s}`,
		strings.ReplaceAll(fmt.Sprintf("%d", []byte(body)), " ", ",")))
	if line.Body != body || line.User || line.Unsure {
		t.Errorf("%+v", line)
	}
}

func FuzzParse(f *testing.F) {
	f.Add("<3>Jan  2 03:04:05 node-1 kernel: [  130.456250] [   T1946] NVRM: Xid")
	f.Add("2026-01-02T03:04:05.000000+01:00 node-1 kernel: x")
	f.Fuzz(func(t *testing.T, line string) {
		bare := !strings.Contains(line, "\x1b") && !strings.HasPrefix(strings.TrimLeft(line, "> \ufeff\t\"'`"), "{")
		if got := textlog.Parse(line); bare && !strings.Contains(line, got.Body) {
			t.Fatalf("%q gave the body %q", line, got.Body)
		}
	})
}
