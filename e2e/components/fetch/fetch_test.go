package fetch

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"crypto/sha512"
	"debug/elf"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// proxied counts what the proxy of this process's environment was asked.
var proxied atomic.Int32

func TestMain(m *testing.M) {
	proxy := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		proxied.Add(1)
		fmt.Fprint(w, elf.ELFMAG+" through the proxy to "+r.URL.Host)
	}))
	os.Setenv("HTTP_PROXY", proxy.URL)
	m.Run()
}

// release is a server with the layouts of the releases: dl.k8s.io has a file beside each program, etcd a list of all in the folder, NPD a file
// beside the archive, and KWOK nothing.
type release struct {
	*httptest.Server
	files map[string][]byte
	asked []string
}

func serve(t *testing.T) *release {
	t.Helper()
	r := &release{files: map[string][]byte{}}
	r.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, request *http.Request) {
		r.asked = append(r.asked, request.URL.Path)
		text, found := r.files[request.URL.Path]
		if !found {
			http.NotFound(w, request)
			return
		}
		_, _ = w.Write(text)
	}))
	t.Cleanup(r.Close)
	program := []byte("#!/bin/sh\necho kubelet\n")
	r.files["/release/v1.37.1/bin/linux/amd64/kubelet"] = program
	r.files["/release/v1.37.1/bin/linux/amd64/kubelet.sha256"] = fmt.Appendf(nil, "%x", sha256.Sum256(program))
	etcd := archive(t, "etcd-v3.7.0-linux-amd64/etcd", "etcd", "etcd-v3.7.0-linux-amd64/etcdctl", "etcdctl")
	r.files["/etcd/v3.7.0/etcd-v3.7.0-linux-amd64.tar.gz"] = etcd
	r.files["/etcd/v3.7.0/SHA256SUMS"] = fmt.Appendf(nil, "%x  etcd-v3.7.0-darwin-amd64.zip\n%x  etcd-v3.7.0-linux-amd64.tar.gz\n", sha256.Sum256(nil), sha256.Sum256(etcd))
	npd := archive(t, "config/kernel-monitor.json", "{}", "bin/node-problem-detector", "npd")
	r.files["/npd/npd.tar.gz"] = npd
	r.files["/npd/npd.tar.gz.sha512"] = fmt.Appendf(nil, "%x  npd.tar.gz\n", sha512.Sum512(npd))
	r.files["/kwok/kwok-linux-amd64"] = []byte(kwokText)
	return r
}

// kwokText is a program that no checksum is published of.
const kwokText = elf.ELFMAG + "kwok"

func archive(t *testing.T, namesAndTexts ...string) []byte {
	t.Helper()
	var out bytes.Buffer
	packed := gzip.NewWriter(&out)
	files := tar.NewWriter(packed)
	for i := 0; i < len(namesAndTexts); i += 2 {
		text := []byte(namesAndTexts[i+1])
		err := files.WriteHeader(&tar.Header{Name: namesAndTexts[i], Mode: 0o644, Size: int64(len(text))})
		if _, failed := files.Write(text); err != nil || failed != nil {
			t.Fatal(err, failed)
		}
	}
	if err := errors.Join(files.Close(), packed.Close()); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

func (r *release) kubelet() File {
	file := r.URL + "/release/v1.37.1/bin/linux/amd64/kubelet"
	return File{URL: file, Sums: file + ".sha256"}
}

func (r *release) kwok() File { return File{URL: r.URL + "/kwok/kwok-linux-amd64"} }

// home is where a test's programs go.
type home struct {
	*testing.T
	*Fetcher
	dir string
}

func newHome(t *testing.T) home {
	dir := t.TempDir()
	return home{t, fetcher(5*time.Second, filepath.Join(dir, "record", "checksums.txt"), ""), dir}
}

func (h home) fetch(file File) (string, error) {
	h.Helper()
	to := filepath.Join(h.dir, "program")
	if err := h.Fetch(h.Context(), file, to); err != nil {
		if _, missing := os.Stat(to + ".part"); !errors.Is(missing, os.ErrNotExist) {
			h.Errorf("a part is left: %v", missing)
		}
		return "", err
	}
	info, err := os.Stat(to)
	if err != nil || info.Mode().Perm() != 0o755 {
		h.Errorf("mode %v, %v", info.Mode(), err)
	}
	text, err := os.ReadFile(to)
	if left, _ := filepath.Glob(to + ".*"); left != nil {
		h.Errorf("left: %s", left)
	}
	return string(text), err
}

func TestEachLayoutIsProven(t *testing.T) {
	r := serve(t)
	for name, c := range map[string]struct {
		file File
		want string
	}{
		"dl.k8s.io": {r.kubelet(), "#!/bin/sh\necho kubelet\n"},
		"etcd":      {File{r.URL + "/etcd/v3.7.0/etcd-v3.7.0-linux-amd64.tar.gz", r.URL + "/etcd/v3.7.0/SHA256SUMS", "etcd"}, "etcd"},
		"NPD":       {File{r.URL + "/npd/npd.tar.gz", r.URL + "/npd/npd.tar.gz.sha512", "bin/node-problem-detector"}, "npd"},
		"KWOK":      {r.kwok(), kwokText},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHome(t)
			if text, err := h.fetch(c.file); err != nil || text != c.want {
				t.Errorf("%q, %v", text, err)
			}
			recorded, err := os.ReadFile(h.Record)
			if err != nil || !strings.HasSuffix(string(recorded), " "+c.file.URL+"\n") {
				t.Errorf("recorded: %q, %v", recorded, err)
			}
			if text, err := h.fetch(c.file); err != nil || text != c.want {
				t.Errorf("a second time: %q, %v", text, err)
			}
		})
	}
}

func TestAWrongChecksumIsRefused(t *testing.T) {
	for name, damage := range map[string]func(*release){
		"the file": func(r *release) { r.files["/release/v1.37.1/bin/linux/amd64/kubelet"] = []byte("another") },
		"the checksum": func(r *release) {
			r.files["/release/v1.37.1/bin/linux/amd64/kubelet.sha256"] = fmt.Appendf(nil, "%x", sha256.Sum256(nil))
		},
	} {
		t.Run(name, func(t *testing.T) {
			r, h := serve(t), newHome(t)
			damage(r)
			_, err := h.fetch(r.kubelet())
			if refused := (*Refused)(nil); !errors.As(err, &refused) || !strings.HasPrefix(err.Error(), r.kubelet().URL+" is refused: its checksum is sha256:") ||
				!strings.Contains(err.Error(), "but that in "+r.kubelet().Sums+" is sha256:") {
				t.Errorf("got %v", err)
			}
			if _, err := os.Stat(h.Record); !errors.Is(err, os.ErrNotExist) {
				t.Error("it is recorded", err)
			}
		})
	}
}

// A release is never replaced. Who can replace its file can replace the checksum beside it.
func TestAReleaseThatHasChangedSinceItsFirstUseIsRefused(t *testing.T) {
	r, h := serve(t), newHome(t)
	for _, file := range []File{r.kubelet(), r.kwok()} {
		if _, err := h.fetch(file); err != nil {
			t.Fatal(err)
		}
	}
	r.files["/release/v1.37.1/bin/linux/amd64/kubelet"] = []byte("another")
	r.files["/release/v1.37.1/bin/linux/amd64/kubelet.sha256"] = fmt.Appendf(nil, "%x", sha256.Sum256([]byte("another")))
	r.files["/kwok/kwok-linux-amd64"] = []byte("another")
	for _, file := range []File{r.kubelet(), r.kwok()} {
		_, err := h.fetch(file)
		if refused := (*Refused)(nil); !errors.As(err, &refused) || !strings.Contains(err.Error(), "but that of its first use, in "+h.Record+", is sha256:") {
			t.Errorf("got %v", err)
		}
	}
}

func TestAPinnedChecksumComesFirst(t *testing.T) {
	r, h := serve(t), newHome(t)
	h.pinned = fmt.Sprintf("# comment\nsha512:%x %s\n", sha512.Sum512([]byte(kwokText)), r.kwok().URL)
	if text, err := h.fetch(r.kwok()); err != nil || text != kwokText {
		t.Errorf("%q, %v", text, err)
	}
	h.pinned = fmt.Sprintf("sha256:%x %s\n", sha256.Sum256(nil), r.kubelet().URL)
	_, err := h.fetch(r.kubelet())
	if refused := (*Refused)(nil); !errors.As(err, &refused) || !strings.Contains(err.Error(), "but that in e2e/components/fetch/checksums.txt is") {
		t.Errorf("got %v", err)
	}
	if len(r.asked) != 2 {
		t.Errorf("asked for %s", r.asked)
	}
}

func TestWhatIsMissingIsNamed(t *testing.T) {
	r, h := serve(t), newHome(t)
	file := r.kubelet()
	delete(r.files, "/release/v1.37.1/bin/linux/amd64/kubelet")
	if _, err := h.fetch(file); err == nil || err.Error() != file.URL+" answers 404 Not Found" {
		t.Errorf("no file: %v", err)
	}
	delete(r.files, "/release/v1.37.1/bin/linux/amd64/kubelet.sha256")
	if _, err := h.fetch(file); err == nil || err.Error() != file.Sums+" answers 404 Not Found" {
		t.Errorf("no checksum: %v", err)
	}
	r.files["/release/v1.37.1/bin/linux/amd64/kubelet.sha256"] = []byte("<html>Log in to the network</html>")
	if _, err := h.fetch(file); err == nil || err.Error() != file.Sums+" has no checksum of kubelet" {
		t.Errorf("another text: %v", err)
	}
	etcd := File{r.URL + "/etcd/v3.7.0/etcd-v3.7.0-linux-amd64.tar.gz", r.URL + "/etcd/v3.7.0/SHA256SUMS", "etcdutl"}
	if _, err := h.fetch(etcd); err == nil || err.Error() != "unpack "+etcd.URL+": it has no etcdutl" {
		t.Errorf("no such program: %v", err)
	}
}

// The first use of a file without a checksum is trusted, but a proxy that answers with a page is not taken for the release.
func TestAPageIsNoProgram(t *testing.T) {
	r, h := serve(t), newHome(t)
	r.files["/kwok/kwok-linux-amd64"] = []byte("<html>blocked</html>")
	if _, err := h.fetch(r.kwok()); err == nil || err.Error() != r.kwok().URL+` is not used: it is no program, it begins with "<htm"` {
		t.Errorf("got %v", err)
	}
	r.files["/kwok/kwok-linux-amd64"] = []byte(kwokText)
	if text, err := h.fetch(r.kwok()); err != nil || text != kwokText {
		t.Errorf("the release itself: %q, %v", text, err)
	}
}

// The servers send a beginning, of the program or of its checksum: then they keep silent, or one hangs up.
func TestADownloadThatStallsOrBreaksIsGivenUp(t *testing.T) {
	stalls := func(r *http.Request) { <-r.Context().Done() }
	for name, c := range map[string]struct {
		sums     string
		patience time.Duration
		then     func(*http.Request)
		want     string
	}{
		"stalls":          {"", 100 * time.Millisecond, stalls, "nothing came for 100ms"},
		"stalls its sums": {"/sums", 100 * time.Millisecond, stalls, "nothing came for 100ms"},
		"breaks":          {"", time.Minute, func(*http.Request) { panic(http.ErrAbortHandler) }, "unexpected EOF"},
	} {
		t.Run(name, func(t *testing.T) {
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("Content-Length", "1000")
				fmt.Fprint(w, "kw")
				w.(http.Flusher).Flush()
				c.then(r)
			}))
			t.Cleanup(server.Close)
			h := newHome(t)
			h.Fetcher = fetcher(c.patience, h.Record, "")
			file := File{URL: server.URL}
			if c.sums != "" {
				file.Sums = server.URL + c.sums
			}
			_, err := h.fetch(file)
			if refused := (*Refused)(nil); err == nil || errors.As(err, &refused) || err.Error() != "download "+server.URL+c.sums+": "+c.want {
				t.Errorf("got %v", err)
			}
		})
	}
}

func TestAPartOfAnEarlierTryIsNotUsed(t *testing.T) {
	r := serve(t)
	for file, want := range map[File]string{
		r.kwok(): kwokText,
		{r.URL + "/etcd/v3.7.0/etcd-v3.7.0-linux-amd64.tar.gz", r.URL + "/etcd/v3.7.0/SHA256SUMS", "etcd"}: "etcd",
	} {
		h := newHome(t)
		leave := []string{"program.part"}
		if file.Member != "" {
			leave = append(leave, "program.program")
		}
		for _, name := range leave {
			if err := os.WriteFile(filepath.Join(h.dir, name), bytes.Repeat([]byte("old"), 1000), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		if text, err := h.fetch(file); err != nil || text != want {
			t.Errorf("%q, %v", text, err)
		}
	}
}

func TestAProxyIsUsed(t *testing.T) {
	h, before := newHome(t), proxied.Load()
	text, err := h.fetch(File{URL: "http://releases.example/kwok"})
	if err != nil || text != elf.ELFMAG+" through the proxy to releases.example" || proxied.Load() != before+1 {
		t.Errorf("%q, %v", text, err)
	}
}

func TestHostsThatCannotBeReachedAreFoundSoon(t *testing.T) {
	r, h := serve(t), newHome(t)
	if err := h.Reachable(t.Context(), r.kwok().URL, r.kubelet().URL); err != nil || len(r.asked) != 1 {
		t.Errorf("%v after %s", err, r.asked)
	}
	gone := httptest.NewServer(nil)
	gone.Close()
	if err := h.Reachable(t.Context(), r.kwok().URL, gone.URL); err == nil {
		t.Error("a closed port is reachable")
	}
	silent := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }))
	t.Cleanup(silent.Close)
	h.Fetcher = fetcher(100*time.Millisecond, h.Record, "")
	err := h.Reachable(t.Context(), silent.URL)
	if u, _ := url.Parse(silent.URL); err == nil || !strings.Contains(err.Error(), u.Host) {
		t.Errorf("got %v", err)
	}
}
