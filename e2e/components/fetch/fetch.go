// Package fetch downloads the official binaries of releases, and accepts only those with the checksum that is pinned, that was recorded at
// their first use, or that the release itself has.
package fetch

import (
	"archive/tar"
	"bufio"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"crypto/sha512"
	"debug/elf"
	_ "embed"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"net/url"
	"os"
	"path"
	"path/filepath"
	"strings"
	"time"
)

// pinned has the checksums that this repository knows, in the form of [Fetcher.Record]. They come first.
//
//go:embed checksums.txt
var pinned string

// File is a program in a release.
type File struct {
	URL string
	// Sums is where the release has the checksum of the file, in SHA-256 or SHA-512: alone, or in the form of sha256sum. If it is empty, the
	// release has none, and what comes over TLS first is trusted.
	Sums string
	// Member ends the path of the program in the archive; empty: the file itself is the program.
	Member string
}

// Refused is the error for a file whose checksum is wrong.
type Refused struct{ URL, Got, Want, Source string }

func (r *Refused) Error() string {
	return fmt.Sprintf("%s is refused: its checksum is %s, but that %s is %s", r.URL, r.Got, r.Source, r.Want)
}

// Fetcher fetches files.
type Fetcher struct {
	// Patience is how long a server may be silent, or a connection may take.
	Patience time.Duration
	// Record is the file with the checksums of first uses. Each line has a checksum, such as sha256:HEX, and an URL.
	Record string

	pinned string
	client *http.Client
}

// New returns a fetcher that records checksums in a file of this user, and gives up on a server that is silent for 5 s. It uses the proxy
// of the environment.
func New() (*Fetcher, error) {
	cache, err := os.UserCacheDir()
	if err != nil {
		return nil, fmt.Errorf("find the folder of recorded checksums: %w", err)
	}
	return fetcher(5*time.Second, filepath.Join(cache, "pitcrew", "component-checksums.txt"), pinned), nil
}

func fetcher(patience time.Duration, record, pinned string) *Fetcher {
	return &Fetcher{Patience: patience, Record: record, pinned: pinned, client: &http.Client{Transport: &http.Transport{
		Proxy:       http.ProxyFromEnvironment,
		DialContext: (&net.Dialer{Timeout: patience}).DialContext, TLSHandshakeTimeout: patience, ResponseHeaderTimeout: patience,
	}}}
}

// Reachable returns an error unless a server answers at all of the hosts of the URLs. All are asked at once, within the patience.
func (f *Fetcher) Reachable(ctx context.Context, urls ...string) error {
	ctx, cancel := context.WithTimeoutCause(ctx, f.Patience, fmt.Errorf("no answer within %s", f.Patience))
	defer cancel()
	hosts := map[string]bool{}
	for _, raw := range urls {
		u, err := url.Parse(raw)
		if err != nil {
			return err
		}
		hosts[u.Scheme+"://"+u.Host+"/"] = true
	}
	errs := make(chan error, len(hosts))
	for host := range hosts {
		go func() {
			response, err := f.request(ctx, http.MethodHead, host)
			if err == nil {
				response.Body.Close()
			}
			errs <- err
		}()
	}
	for range hosts {
		if err := <-errs; err != nil {
			return err
		}
	}
	return nil
}

// Fetch writes the program to a path once its file has been proven. A file that an earlier try has left is not used.
func (f *Fetcher) Fetch(ctx context.Context, file File, to string) error {
	want, source, err := f.want(ctx, file)
	if err != nil {
		return err
	}
	part := to + ".part"
	defer func() { _ = os.Remove(part) }()
	got, err := f.download(ctx, file.URL, part, want)
	if err != nil {
		return err
	}
	if want != "" && got != want {
		return &Refused{URL: file.URL, Got: got, Want: want, Source: source}
	}
	program := part
	if file.Member != "" {
		program = to + ".program"
		defer func() { _ = os.Remove(program) }()
		if err := extract(part, file.Member, program); err != nil {
			return fmt.Errorf("unpack %s: %w", file.URL, err)
		}
	}
	if want == "" { // a proxy may answer with a page
		if err := isProgram(program); err != nil {
			return fmt.Errorf("%s is not used: %w", file.URL, err)
		}
	}
	if err := os.Chmod(program, 0o755); err != nil {
		return err
	}
	if err := f.record(file.URL, got); err != nil {
		return err
	}
	return os.Rename(program, to)
}

// isProgram returns an error unless a file is a program of Linux.
func isProgram(path string) error {
	file, err := os.Open(path)
	if err != nil {
		return err
	}
	defer file.Close()
	begin := make([]byte, len(elf.ELFMAG))
	if n, err := io.ReadFull(file, begin); string(begin[:n]) != elf.ELFMAG {
		return errors.Join(fmt.Errorf("it is no program, it begins with %q", begin[:n]), err)
	}
	return nil
}

// want returns the checksum that a file must have and where that is from; an empty one if nobody knows.
func (f *Fetcher) want(ctx context.Context, file File) (sum, source string, err error) {
	if sum := find(f.pinned, file.URL); sum != "" {
		return sum, "in e2e/components/fetch/checksums.txt", nil
	}
	recorded, err := os.ReadFile(f.Record)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return "", "", err
	}
	if sum := find(string(recorded), file.URL); sum != "" {
		return sum, "of its first use, in " + f.Record + ",", nil
	}
	if file.Sums == "" {
		return "", "", nil
	}
	var text strings.Builder
	if err := f.get(ctx, file.Sums, &text, 1<<20); err != nil {
		return "", "", err
	}
	if sum = published(text.String(), path.Base(file.URL)); sum == "" {
		return "", "", fmt.Errorf("%s has no checksum of %s", file.Sums, path.Base(file.URL))
	}
	return sum, "in " + file.Sums, nil
}

// find returns the checksum of an URL in a record.
func find(record, url string) string {
	for line := range strings.Lines(record) {
		if fields := strings.Fields(line); len(fields) == 2 && fields[1] == url {
			return fields[0]
		}
	}
	return ""
}

// published reads a release's own checksums.
func published(text, name string) string {
	for line := range strings.Lines(text) {
		fields := strings.Fields(line)
		if len(fields) == 0 || len(fields) > 1 && path.Base(strings.TrimPrefix(fields[1], "*")) != name {
			continue
		}
		raw, err := hex.DecodeString(fields[0])
		switch {
		case err == nil && len(raw) == sha256.Size:
			return "sha256:" + strings.ToLower(fields[0])
		case err == nil && len(raw) == sha512.Size:
			return "sha512:" + strings.ToLower(fields[0])
		}
	}
	return ""
}

// download writes what an URL has to a file and returns its checksum, of the kind that is wanted.
func (f *Fetcher) download(ctx context.Context, url, to, want string) (sum string, err error) {
	out, err := os.Create(to)
	if err != nil {
		return "", err
	}
	kind, digest := "sha256", sha256.New()
	if strings.HasPrefix(want, "sha512:") {
		kind, digest = "sha512", sha512.New()
	}
	err = f.get(ctx, url, io.MultiWriter(out, digest), math.MaxInt64)
	if err = errors.Join(err, out.Close()); err != nil {
		return "", err
	}
	return kind + ":" + hex.EncodeToString(digest.Sum(nil)), nil
}

// get copies at most so many bytes of what an URL has. It gives up on a server that is silent.
func (f *Fetcher) get(ctx context.Context, url string, to io.Writer, most int64) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	silence := time.AfterFunc(f.Patience, func() { cancel(fmt.Errorf("nothing came for %s", f.Patience)) })
	defer silence.Stop()
	response, err := f.request(ctx, http.MethodGet, url)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if _, err := io.Copy(to, io.LimitReader(&heard{response.Body, silence, f.Patience}, most)); err != nil {
		if cause := context.Cause(ctx); cause != nil {
			err = cause
		}
		return fmt.Errorf("download %s: %w", url, err)
	}
	return nil
}

// heard is a reader that starts a timer anew whenever something came.
type heard struct {
	io.Reader
	silence  *time.Timer
	patience time.Duration
}

func (h *heard) Read(p []byte) (int, error) {
	n, err := h.Reader.Read(p)
	h.silence.Reset(h.patience)
	return n, err
}

func (f *Fetcher) request(ctx context.Context, method, url string) (*http.Response, error) {
	request, err := http.NewRequestWithContext(ctx, method, url, nil)
	if err != nil {
		return nil, err
	}
	client := *f.client
	if method == http.MethodHead { // an answer is enough, wherever it leads
		client.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	}
	response, err := client.Do(request)
	if err != nil {
		if cause := context.Cause(ctx); cause != nil {
			err = fmt.Errorf("%s: %w", url, cause)
		}
		return nil, err
	}
	if method == http.MethodGet && response.StatusCode != http.StatusOK {
		response.Body.Close()
		return nil, fmt.Errorf("%s answers %s", url, response.Status)
	}
	return response, nil
}

// extract writes one file of a .tar.gz.
func extract(archive, member, to string) error {
	in, err := os.Open(archive)
	if err != nil {
		return err
	}
	defer in.Close()
	unpacked, err := gzip.NewReader(bufio.NewReader(in))
	if err != nil {
		return err
	}
	for files := tar.NewReader(unpacked); ; {
		header, err := files.Next()
		if errors.Is(err, io.EOF) {
			return fmt.Errorf("it has no %s", member)
		}
		if err != nil {
			return err
		}
		if header.Typeflag != tar.TypeReg || !strings.HasSuffix("/"+header.Name, "/"+member) {
			continue
		}
		out, err := os.Create(to)
		if err != nil {
			return err
		}
		_, err = io.Copy(out, files)
		return errors.Join(err, out.Close())
	}
}

// record keeps the checksum of a first use.
func (f *Fetcher) record(url, sum string) error {
	recorded, err := os.ReadFile(f.Record)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	if find(f.pinned, url) != "" || find(string(recorded), url) != "" {
		return nil
	}
	if err := os.MkdirAll(filepath.Dir(f.Record), 0o755); err != nil {
		return err
	}
	out, err := os.OpenFile(f.Record, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(out, "%s %s\n", sum, url)
	return errors.Join(err, out.Close())
}
