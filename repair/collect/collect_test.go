package collect

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"
)

// What is planted must be gone, and what a reader needs must stay.
func TestTheFilter(t *testing.T) {
	for line, want := range map[string]string{
		// argv
		`root  4242  0.0  0.1 12 34 ?  Ssl  03:10  0:07 python3 train.py PLANTED`:              `root  4242  0.0  0.1 12 34 ?  Ssl  03:10  0:07 python3 [removed]`,
		`   4242 ?        00:00:07 /usr/bin/trainer PLANTED`:                                   `   4242 ?        00:00:07 /usr/bin/trainer [removed]`,
		`            Name                          : python3 train.py PLANTED`:                 `            Name                          : python3 [removed]`,
		`|    0   N/A  N/A            4242      C   python3 PLANTED x.py            1024MiB |`: `|    0   N/A  N/A            4242      C   python3 [removed]            1024MiB |`,
		`audit: type=1327 msg=audit(1.2:3): proctitle=504C414E544544PLANTED`:                   `audit: type=1327 msg=audit(1.2:3): proctitle=[removed]`,
		`started with --password PLANTED --port 8080 --key="PLANTED PLANTED" -v`:               `started with --password [removed] --port [removed] --key=[removed] -v`,
		`Kernel command line: BOOT_IMAGE=/vmlinuz rd.luks.key=PLANTED quiet`:                   `Kernel command line: [removed]`,
		`  ExecStart=/usr/bin/agent PLANTED`:                                                   `  ExecStart=[removed]`,
		// environments
		`WANDB_API_KEY=PLANTED`: `WANDB_API_KEY=[removed]`,
		`env: HOME=/root PLANTED B=x AWS_SESSION=PLANTED with PLANTED`: `env: HOME=[removed] AWS_SESSION=[removed]`,
		`Environment=A=PLANTED "B=PLANTED"`:                            `Environment=[removed]`,
		`nvidia-dcgm[7]: sudo: COMMAND=/bin/x PLANTED`:                 `nvidia-dcgm[7]: sudo: COMMAND=[removed]`,
		// tokens
		`Authorization: Bearer PLANTED`:                   `Authorization: [removed]`,
		`sent bearer PLANTEDPLANTED to x`:                 `sent bearer [removed] to x`,
		`{"token": "PLANTED \" PLANTED", "n": 1}`:         `{"token": [removed], "n": 1}`,
		`db password: PLANTED PLANTED`:                    `db password: [removed]`,
		`pull https://user:PLANTED@registry.example/x`:    `pull https://[removed]@registry.example/x`,
		`jwt eyJPLANTEDPLANTED.eyJPLANTED.PLANTED end`:    `jwt [removed] end`,
		`hf_PLANTEDPLANTEDPLANTED and AKIAPLANTEDPLANTED`: `[removed] and [removed]`,
		// what stays
		`NVRM: Xid (PCI:0000:4e:00): 79, pid=4242, name=python3, GPU has fallen off the bus.`:                                                                                ``,
		`NVRM: Xid (PCI:0000:4e:00): 119, pid=1, name=x, Timeout after 6s of waiting for RPC response from GPU0 GSP! Expected function 76 (GSP_RM_CONTROL) (0x20803040 0x4)`: ``,
		`mlx5_core 0000:0c:00.0: Port module event: module 0, Cable unplugged`:                                                                                               ``,
		`    Product Name                          : NVIDIA H100 80GB HBM3`:                                                                                                  ``,
		`    Serial Number                         : 1650522000000`:                                                                                                          ``,
		`    VBIOS Version                         : 96.00.74.00.01`:                                                                                                         ``,
		`/class/infiniband/mlx5_0/device/uevent: PCI_SLOT_NAME=0000:0c:00.0`:                                                                                                 ``,
		`2026-11-28T03:40:00.123456+0000 host nvidia-fabricmanager[812]: Connected to 8 GPUs`:                                                                                ``,
		`Nov  8 03:40:00 host kernel: pcieport 0000:00:01.0: AER: Corrected error received`:                                                                                  ``,
		`mce: [Hardware Error]: CPU 1: Machine Check: 0 Bank 4: b200000000070005`:                                                                                            ``,
	} {
		if want == "" {
			want = line
		}
		f := &Filter{}
		if got := f.Line(line); got != want || f.Lines > 1 || (f.Lines == 1) != (want != line) {
			t.Errorf("%s\nbecomes %s\nnot     %s", line, got, want)
		}
	}
}

func TestTheFilterTakesKeysOut(t *testing.T) {
	var out bytes.Buffer
	w := &filtered{write: func(line []byte) { out.Write(line) }}
	text := "a\nkey: -----BEGIN RSA PRIVATE KEY-----\nPLANTED\nPLANTED\n-----END RSA PRIVATE KEY-----\nb\n" +
		strings.Repeat("x", maxLine+100) + "\npassw" + "ord=PLANTED"
	for _, c := range []byte(text) { // in pieces
		if n, err := w.Write([]byte{c}); n != 1 || err != nil {
			t.Fatal(n, err)
		}
	}
	w.close()
	want := "a\nkey: [removed]\n[removed]\n[removed]\n[removed]\nb\n" + strings.Repeat("x", maxLine) + "\npassword=[removed]\n"
	if out.String() != want {
		t.Errorf("%.300q", out.String())
	}
}

// Looking for the texts that a pattern needs leaves out no line that it matches.
func FuzzFilter(f *testing.F) {
	f.Add("a=b\n-----BEGIN X-----\nA_B=c --d e")
	f.Add("pa\u017f\u017fword: x\nTO\u212aEN=x\n-A b\n\f-a b\t--c=d\r-e f\nArgv: x\nBEARER 12345678\nsk-123456789012 ASIA1234567890123\nx://a@b")
	f.Add("1 2 3 1:23 x y\n    Name : x y\n| 1 C x y  7MiB |\nproxy-Authorization= x\neyJ12345678.x.y\nghp_123456789012\nENVIRONMENTFILE:x\nexecStopPost=x")
	f.Fuzz(func(t *testing.T, text string) {
		w := &filtered{write: func([]byte) {}}
		_, _ = w.Write([]byte(text))
		w.close()
		for line := range strings.SplitSeq(text, "\n") {
			if strings.Contains(line, "-----") {
				continue // keys are taken out by other means
			}
			want := strings.ToValidUTF8(line, "?")
			for _, rule := range rules {
				want = rule.pattern.ReplaceAllString(want, rule.with)
			}
			if want, got := withoutVariables(want), (&Filter{}).Line(line); got != want {
				t.Errorf("%q becomes %q, not %q", line, got, want)
			}
		}
	})
}

var at = time.Date(2026, 11, 28, 3, 30, 0, 0, time.UTC)

func bundle(t *testing.T) Bundle {
	t.Helper()
	return Bundle{Dir: t.TempDir(), Node: "gpu-1.example", At: at, MaxBytes: 4 << 20, Keep: 2}
}

func text(name, content string) Part {
	return Part{Name: name, Limit: time.Second, Read: func(_ context.Context, w io.Writer) error {
		_, err := io.WriteString(w, content)
		return err
	}}
}

// open returns the files of a bundle. It fails if the bundle is not whole.
func open(t *testing.T, b Bundle, name string) map[string]string {
	t.Helper()
	file, err := os.Open(filepath.Join(b.Dir, name))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	zip, err := gzip.NewReader(file)
	if err != nil {
		t.Fatal(err)
	}
	files := map[string]string{}
	archive := tar.NewReader(zip)
	for {
		head, err := archive.Next()
		if errors.Is(err, io.EOF) {
			return files
		}
		if err != nil {
			t.Fatal(err)
		}
		data, err := io.ReadAll(archive)
		if err != nil {
			t.Fatal(err)
		}
		files[head.Name] = string(data)
	}
}

func files(t *testing.T, b Bundle) string {
	t.Helper()
	entries, err := os.ReadDir(b.Dir)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, e := range entries {
		if !strings.HasSuffix(e.Name(), ".lock") {
			names = append(names, e.Name())
		}
	}
	return strings.Join(names, " ")
}

// A part that hangs for ever, whatever its context says, costs its limit and a line. Those after it are read, until the time is over.
func TestAPartThatHangsIsALineInTheIndex(t *testing.T) {
	b := bundle(t)
	synctest.Test(t, func(t *testing.T) {
		hang := make(chan struct{})
		hung := Part{Name: "hung.txt", Limit: 20 * time.Second, Read: func(_ context.Context, w io.Writer) error {
			_, _ = io.WriteString(w, "begins\n")
			<-hang
			_, err := io.WriteString(w, "too late\n")
			return err
		}}
		panics := Part{Name: "panics.txt", Limit: time.Second, Read: func(context.Context, io.Writer) error { panic("bad") }}
		missing := Part{Name: "missing.txt", Limit: time.Second, Read: func(context.Context, io.Writer) error {
			return errors.New("there is no tool; TOKEN=PLANTED")
		}}
		begin := time.Now()
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
		defer cancel()
		written, err := b.Write(ctx, []Part{hung, panics, missing, text("a.txt", "a\n"), hung, text("late.txt", "b\n")})
		if took := time.Since(begin); err != nil || took > 40*time.Second {
			t.Fatal(took, err)
		}
		close(hang)
		synctest.Wait()
		if written.Name != "gpu-1.example-20261128T033000Z.tar.gz" || written.Parts != 1 || written.Of != 6 || written.Bytes == 0 {
			t.Errorf("%+v", written)
		}
		got := open(t, b, written.Name)
		if got["hung.txt"] != "begins\n" || got["a.txt"] != "a\n" || got["late.txt"] != "" {
			t.Errorf("%q", got)
		}
		for _, want := range []string{"left behind", "panic: bad", "there is no tool; TOKEN=[removed]", "not read: the time of the bundle was over"} {
			if !strings.Contains(got[index], want) {
				t.Errorf("the index has no %q:\n%s", want, got[index])
			}
		}
	})
}

// Neither text nor what cannot be compressed makes a bundle larger than its bound, and one large part leaves room for others.
func TestABundleKeepsItsSize(t *testing.T) {
	b := bundle(t)
	noise := func(name string) Part {
		return Part{Name: name, Limit: time.Minute, Read: func(_ context.Context, w io.Writer) error {
			source := rand.NewChaCha8([32]byte{1})
			for {
				line := make([]byte, 48)
				_, _ = source.Read(line)
				if _, err := fmt.Fprintf(w, "%q\n", line); err != nil {
					return err
				}
			}
		}}
	}
	written, err := b.Write(t.Context(), []Part{noise("a.txt"), noise("b.log.gz"), text("c.txt", "c\n")})
	if err != nil || written.Bytes > b.MaxBytes || written.Bytes < b.MaxBytes/4 {
		t.Fatal(written, err)
	}
	got := open(t, b, written.Name)
	if got["c.txt"] != "c\n" || strings.Count(got[index], "cut: ") != 2 || len(got["a.txt"])+len(got["b.log.gz"]) > int(b.MaxBytes) {
		t.Errorf("%d and %d bytes\n%s", len(got["a.txt"]), len(got["b.log.gz"]), got[index])
	}
	var whole bytes.Buffer
	if err := Unzip(&whole, strings.NewReader(got["b.log.gz"])); err != nil || whole.Len() == 0 {
		t.Error(whole.Len(), err)
	}
}

func TestTheNewestBundlesAreKept(t *testing.T) {
	b := bundle(t)
	others := []string{"gpu-1-20261128T033000Z.tar.gz", "gpu-1.example-notes.tar.gz", "gpu-1.example-b-20261128T033000Z.tar.gz"}
	for _, other := range others {
		if err := os.WriteFile(filepath.Join(b.Dir, other), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	var kept []string
	for range 4 {
		written, err := b.Write(t.Context(), []Part{text("a.txt", "a")})
		if err != nil {
			t.Fatal(err)
		}
		kept = append(kept, written.Name)
		b.At = b.At.Add(time.Minute)
	}
	want := slices.Sorted(slices.Values(append(others, kept[2:]...)))
	if got := files(t, b); got != strings.Join(want, " ") {
		t.Errorf("%s, want %s", got, want)
	}
	// The clock goes back: the new one stays.
	b.At = at.Add(-time.Hour)
	written, err := b.Write(t.Context(), []Part{text("a.txt", "a")})
	if got := files(t, b); err != nil || !strings.Contains(got, written.Name) || !strings.Contains(got, kept[3]) || strings.Contains(got, kept[2]) {
		t.Error(got, err)
	}
	if _, err := b.Write(t.Context(), nil); err == nil || !strings.Contains(err.Error(), "is there already") {
		t.Error(err)
	}
}

// What a killed run has left is not a bundle, and the next run removes it. A run that works is not disturbed.
func TestAHalfWrittenBundleIsNotTakenForWhole(t *testing.T) {
	b := bundle(t)
	half := filepath.Join(b.Dir, "gpu-1.example-20261128T030000Z.tar.gz"+partial)
	if err := os.WriteFile(half, []byte("half"), 0o600); err != nil {
		t.Fatal(err)
	}
	if file, err := Open(b.Dir, b.Node, "20261128T030000Z"); err == nil {
		t.Error("opened", file.Name())
	}
	during := Part{Name: "during.txt", Limit: time.Minute, Read: func(ctx context.Context, _ io.Writer) error {
		if got := files(t, b); got != Name(b.Node, b.At)+partial {
			t.Errorf("during a run: %s", got)
		}
		second := b
		second.At = b.At.Add(time.Second)
		if _, err := second.Write(ctx, nil); err == nil || !strings.Contains(err.Error(), "another run writes a bundle") {
			t.Errorf("a second run: %v", err)
		}
		return nil
	}}
	written, err := b.Write(t.Context(), []Part{during})
	if got := files(t, b); err != nil || got != written.Name {
		t.Error(got, err)
	}
}

// tmpfs mounts a small disk.
func tmpfs(t *testing.T, size string) string {
	t.Helper()
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size="+size); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
	return dir
}

// A disk that has no room gets no byte, and keeps the bundles that it has.
func TestAFullDiskIsNotMadeFuller(t *testing.T) {
	b := bundle(t)
	b.Dir, b.MinFree = tmpfs(t, "16m"), 15
	if _, err := b.Write(t.Context(), []Part{text("a.txt", "a")}); err != nil {
		t.Fatal(err)
	}
	free := func() uint64 {
		var fs unix.Statfs_t
		if err := unix.Statfs(b.Dir, &fs); err != nil {
			t.Fatal(err)
		}
		return fs.Bavail
	}
	if err := os.WriteFile(filepath.Join(b.Dir, "others"), make([]byte, 11<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	before, kept := free(), files(t, b)
	b.At = at.Add(time.Hour)
	read := false
	_, err := b.Write(t.Context(), []Part{{Name: "a", Limit: time.Second, Read: func(context.Context, io.Writer) error {
		read = true
		return nil
	}}})
	if err == nil || !strings.Contains(err.Error(), "no room in "+b.Dir+": 4 MiB of 16 MiB are free, 2 MiB stay free, and the bundle may need 4 MiB") || read {
		t.Error(err)
	}
	if free() != before || files(t, b) != kept {
		t.Errorf("%d blocks free, %d before; %s", free(), before, files(t, b))
	}
}

// Others fill the disk while a bundle is written: it is given up, and leaves nothing.
func TestADiskThatOthersFillMeanwhile(t *testing.T) {
	b := bundle(t)
	b.Dir, b.MinFree = tmpfs(t, "16m"), 15
	fills := Part{Name: "a.txt", Limit: time.Minute, Read: func(_ context.Context, w io.Writer) error {
		_, err := io.WriteString(w, strings.Repeat("a\n", 1<<19))
		return errors.Join(err, os.WriteFile(filepath.Join(b.Dir, "others"), make([]byte, 13<<20), 0o600))
	}}
	if _, err := b.Write(t.Context(), []Part{fills}); err == nil || !strings.Contains(err.Error(), "no room") {
		t.Error(err)
	}
	if got := files(t, b); got != "others" {
		t.Error(got)
	}
}

func TestOpenOpensOnlyBundlesOfTheNode(t *testing.T) {
	b := bundle(t)
	written, err := b.Write(t.Context(), []Part{text("a.txt", "a")})
	if err != nil {
		t.Fatal(err)
	}
	if file, err := Open(b.Dir, b.Node, "20261128T033000Z"); err != nil || filepath.Base(file.Name()) != written.Name {
		t.Error(err)
	}
	if err := os.Symlink("/etc/passwd", filepath.Join(b.Dir, Name("n", at))); err != nil {
		t.Fatal(err)
	}
	for node, stamp := range map[string]string{
		"n": "20261128T033000Z", "../" + filepath.Base(b.Dir) + "/gpu-1.example": "20261128T033000Z", b.Node: "../../etc/passwd", "": "20261128T033000Z",
	} {
		if file, err := Open(b.Dir, node, stamp); err == nil {
			t.Errorf("node %q at %q: opened %s", node, stamp, file.Name())
		}
	}
}
