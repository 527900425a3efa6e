package main

import (
	"archive/tar"
	"bytes"
	"cmp"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
)

// write writes the three files and prints the page.
func (k *kit) write(stdout io.Writer) error {
	document, err := json.MarshalIndent(k.result, "", "  ")
	if err != nil {
		return err
	}
	r := k.redactor()
	for _, name := range k.kept.names {
		r.learn(k.kept.get(name))
	}
	page := r.redact(k.page())
	dumps, err := k.archive(r)
	if err != nil {
		return err
	}
	for name, content := range map[string][]byte{
		"result.json": []byte(r.redact(string(document)) + "\n"), "page.txt": []byte(page), "dumps.tar.gz": dumps,
	} {
		if err := os.WriteFile(filepath.Join(k.out, name), content, 0o644); err != nil {
			return err
		}
	}
	fmt.Fprint(stdout, "\n", page)
	return nil
}

// archive returns a compressed tar archive of what is kept.
func (k *kit) archive(r *redactor) ([]byte, error) {
	var out bytes.Buffer
	zipped := gzip.NewWriter(&out)
	w := tar.NewWriter(zipped)
	for _, name := range k.kept.names {
		content := r.redact(k.kept.get(name))
		header := &tar.Header{Typeflag: tar.TypeReg, Name: "dumps/" + name, Mode: 0o644, Size: int64(len(content)), ModTime: k.result.Begun}
		if err := w.WriteHeader(header); err != nil {
			return nil, err
		}
		if _, err := io.WriteString(w, content); err != nil {
			return nil, err
		}
	}
	err := errors.Join(w.Close(), zipped.Close())
	return out.Bytes(), err
}

// page is the result on one page.
func (k *kit) page() string {
	var b strings.Builder
	m, r := k.machine, &k.result
	fmt.Fprintf(&b, "Pitcrew %s on hardware, %s, %.0f s: %s\n\n", r.Version, r.Begun.Format("2006-01-02 15:04 MST"), r.Seconds, r.Result)
	none := func(s string) string { return cmp.Or(s, "none") }
	fmt.Fprintf(&b, "GPUs on the PCI bus %d, kernel module %s, library %s, nvidia-smi %s\n",
		len(m.GPUs), none(m.Module), none(m.Library), none(m.SMI))
	fmt.Fprintf(&b, "kernel %s, %s, %s, %d CPUs, up %s s, first process %s, root %v\n",
		m.Kernel, m.Arch, none(m.Libc), m.CPUs, m.Uptime, m.First, m.Root)
	if m.BusRead != "" {
		fmt.Fprintf(&b, "the PCI bus cannot be read: %s\n", m.BusRead)
	}
	if len(m.Holders) > 0 {
		fmt.Fprintf(&b, "devices were held before it by %s\n", strings.Join(m.Holders, ", "))
	}
	if len(r.HoldersAfter) > 0 {
		fmt.Fprintf(&b, "devices were held after it by %s\n", strings.Join(r.HoldersAfter, ", "))
	}
	b.WriteString("\n")
	for i := range r.Steps {
		s := &r.Steps[i]
		fmt.Fprintf(&b, "%-8s %6.2f s  %-19s  %s\n", s.verdict(), s.Seconds, s.Name, s.short())
	}
	var unsupported []string
	for _, s := range r.Steps {
		if len(s.Unsupported) > 0 {
			unsupported = append(unsupported, fmt.Sprintf("%s: %s\n", s.Name, strings.Join(s.Unsupported, ", ")))
		}
	}
	if len(unsupported) > 0 {
		fmt.Fprintf(&b, "\nNot answered here, and answered by the stand-in of the tests:\n%s", strings.Join(unsupported, ""))
	}
	return b.String()
}
