package main

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// debianPackage is a row of images/debian.lock.
type debianPackage struct {
	name, architecture, version, sha256 string
}

func readLock(path string) ([]debianPackage, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var packages []debianPackage
	for line := range strings.Lines(string(text)) {
		if strings.HasPrefix(line, "#") {
			continue
		}
		fields := strings.Fields(line)
		if len(fields) != 4 {
			return nil, fmt.Errorf("%s: %q has not four fields", path, line)
		}
		packages = append(packages, debianPackage{fields[0], fields[1], fields[2], fields[3]})
	}
	return packages, nil
}

// find returns the package of that name for this platform, and its .deb. It refuses one that is not the pinned one.
func (p *platform) find(name string) (d debianPackage, deb string, err error) {
	i := slices.IndexFunc(p.packages, func(d debianPackage) bool {
		return d.name == name && (d.architecture == p.architecture || d.architecture == "all")
	})
	if i < 0 {
		return d, "", fmt.Errorf("images/debian.lock has no %s for %s", name, p.architecture)
	}
	d = p.packages[i]
	matches, err := filepath.Glob(filepath.Join(p.debs, d.name+"_*_"+d.architecture+".deb"))
	if err != nil || len(matches) != 1 {
		return d, "", fmt.Errorf("%s holds %d packages %s for %s (fetched by make bin/images/debian)", p.debs, len(matches), name, d.architecture)
	}
	deb = matches[0]
	content, err := os.ReadFile(deb)
	if err != nil {
		return d, "", err
	}
	sum := sha256.Sum256(content)
	if hex.EncodeToString(sum[:]) == d.sha256 {
		return d, deb, nil
	}
	if !p.unpinned {
		return d, "", fmt.Errorf("%s is not version %s with SHA-256 %s as in images/debian.lock; its own is %x", deb, d.version, d.sha256, sum)
	}
	d.version = strings.ReplaceAll(strings.Split(filepath.Base(deb), "_")[1], "%3a", ":")
	return d, deb, nil
}

// kept returns whether a file of a package belongs into an image: libraries, the files that name the distribution, the shell
// and the licences. No program in the images uses the character sets and the linker's audit libraries.
var (
	kept    = regexp.MustCompile(`^(lib|lib64|usr/lib)/|^bin/busybox$|^etc/(debian_version|os-release)$|^usr/share/(common-licenses/|doc/[^/]+(/copyright)?$|ca-certificates/)`)
	dropped = regexp.MustCompile(`/(gconv|audit)/`)
)

// unpack returns the files of a package that an image keeps.
func unpack(ctx context.Context, deb string) ([]file, error) {
	archive, err := exec.CommandContext(ctx, "dpkg-deb", "--fsys-tarfile", deb).Output()
	if err != nil {
		return nil, fmt.Errorf("unpack %s: %w", deb, err)
	}
	var files []file
	for r := tar.NewReader(bytes.NewReader(archive)); ; {
		header, err := r.Next()
		if errors.Is(err, io.EOF) {
			return files, nil
		}
		if err != nil {
			return nil, fmt.Errorf("unpack %s: %w", deb, err)
		}
		name := strings.TrimPrefix(header.Name, "./")
		if header.Typeflag == tar.TypeDir || !kept.MatchString(name) || dropped.MatchString(name) {
			continue
		}
		content, err := io.ReadAll(r)
		if err != nil {
			return nil, fmt.Errorf("unpack %s: %w", deb, err)
		}
		files = append(files, file{path: "/" + name, mode: header.FileInfo().Mode().Perm(), link: header.Linkname, content: content})
	}
}

// base returns the files that an image has from Debian packages, and those that no package has.
func (p *platform) base(ctx context.Context, names []string) ([]file, []debianPackage, error) {
	files := []file{
		{path: "/tmp", mode: os.ModeDir | os.ModeSticky | 0o777},
		{path: "/etc/passwd", mode: 0o644, content: []byte("root:x:0:0:root:/:/sbin/nologin\nnonroot:x:65532:65532:nonroot:/:/sbin/nologin\n")},
		{path: "/etc/group", mode: 0o644, content: []byte("root:x:0:\nnonroot:x:65532:\n")},
		{path: "/etc/nsswitch.conf", mode: 0o644, content: []byte("hosts: files dns\n")},
	}
	var used []debianPackage
	var authorities bytes.Buffer
	for _, name := range names {
		d, deb, err := p.find(name)
		if err != nil {
			return nil, nil, err
		}
		unpacked, err := unpack(ctx, deb)
		if err != nil {
			return nil, nil, err
		}
		used = append(used, d)
		for _, f := range unpacked {
			// What update-ca-certificates does when the package is installed.
			if strings.HasPrefix(f.path, "/usr/share/ca-certificates/") {
				authorities.Write(f.content)
				continue
			}
			files = append(files, f)
			if f.path == "/bin/busybox" {
				files = append(files, file{path: "/bin/sh", link: "busybox"})
			}
		}
	}
	return append(files, file{path: "/etc/ssl/certs/ca-certificates.crt", mode: 0o644, content: authorities.Bytes()}), used, nil
}
