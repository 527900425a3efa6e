// Command release makes what the page of a release holds, in one folder: archives of the kubectl plugin for each
// platform and the krew manifest with their checksums, the packaged chart, install.yaml rendered from it, the policy, the
// container images with their lists of contents, and the checksums of all of these. The same commit gives the same bits.
//
//	make release VERSION=v0.2.0
package main

import (
	"archive/tar"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/pitcrew-dev/pitcrew/e2e/components"
)

// images are made by images/build; it writes NAME.tar and NAME-ARCHITECTURE.cdx.json.
var images = []string{"npd-plugins", "plugins", "preflight", "remediator"}

// options are the flags.
type options struct {
	root, images, out, version string
	platforms                  []platform
	// epoch is the time of every file in the archives.
	epoch time.Time
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	o, err := parse(os.Args[1:], os.Getenv)
	if err == nil {
		err = run(ctx, o, os.Stdout)
	}
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "release:", err)
		os.Exit(1)
	}
}

// tag is a version that Go, Helm and krew accept: with a v, and without build metadata, which an image tag cannot have.
var tag = regexp.MustCompile(`^v(0|[1-9][0-9]*)\.(0|[1-9][0-9]*)\.(0|[1-9][0-9]*)(-[0-9A-Za-z.-]+)?$`)

func parse(args []string, env func(string) string) (options, error) {
	o := options{platforms: platforms}
	f := flag.NewFlagSet("release", flag.ContinueOnError)
	f.StringVar(&o.root, "root", ".", "`folder` of the repository")
	f.StringVar(&o.images, "images", "", "`folder` with the images and lists of images/build (default bin/images)")
	f.StringVar(&o.out, "out", "", "`folder` to write; what was in it is lost (default bin/release)")
	f.StringVar(&o.version, "version", "", "`tag` of the release, such as v0.2.0")
	f.Func("platforms", "comma-separated `platforms` of the kubectl plugin instead of all", func(text string) error {
		o.platforms = nil
		for name := range strings.SplitSeq(text, ",") {
			i := slices.IndexFunc(platforms, func(p platform) bool { return p.os+"/"+p.arch == name })
			if i < 0 {
				return fmt.Errorf("%q is none of the platforms of a release", name)
			}
			o.platforms = append(o.platforms, platforms[i])
		}
		return nil
	})
	if err := f.Parse(args); err != nil {
		return o, err
	}
	if !tag.MatchString(o.version) {
		return o, fmt.Errorf("-version %q is not like v0.2.0; with make: make release VERSION=v0.2.0", o.version)
	}
	var err error
	if o.root, err = filepath.Abs(o.root); err != nil {
		return o, err
	}
	o.images = cmp.Or(o.images, filepath.Join(o.root, "bin", "images"))
	o.out = cmp.Or(o.out, filepath.Join(o.root, "bin", "release"))
	// A zip archive cannot store a time before 1980.
	o.epoch = time.Date(1980, 1, 1, 0, 0, 0, 0, time.UTC)
	if text := env("SOURCE_DATE_EPOCH"); text != "" {
		seconds, err := strconv.ParseInt(text, 10, 64)
		if err != nil {
			return o, fmt.Errorf("SOURCE_DATE_EPOCH %q is not a number of seconds", text)
		}
		o.epoch = time.Unix(seconds, 0).UTC()
	}
	return o, nil
}

// run makes the release and lists what it has made.
func run(ctx context.Context, o options, out io.Writer) error {
	if err := errors.Join(os.RemoveAll(o.out), os.MkdirAll(o.out, 0o755)); err != nil {
		return err
	}
	for _, step := range []func(context.Context, options) error{copyImages, makeChart, makePlugin, sumAll} {
		if err := step(ctx, o); err != nil {
			return err
		}
	}
	entries, err := os.ReadDir(o.out)
	if err != nil {
		return err
	}
	for _, entry := range entries {
		info, err := entry.Info()
		if err != nil {
			return err
		}
		fmt.Fprintf(out, "%8.1f MB  %s\n", float64(info.Size())/1e6, filepath.Join(o.out, entry.Name()))
	}
	return nil
}

// copyImages takes the images and their lists of contents. It refuses images of another release, which lie in the same
// folder after an earlier `make images`.
func copyImages(_ context.Context, o options) error {
	for _, name := range images {
		archive := filepath.Join(o.images, name+".tar")
		found, err := imageTag(archive)
		if err != nil {
			return fmt.Errorf("image %s: %w", name, err)
		}
		if found != o.version {
			return fmt.Errorf("image %s is of %s, not of %s: run `make images VERSION=%s`", archive, found, o.version, o.version)
		}
		lists, err := filepath.Glob(filepath.Join(o.images, name+"-*.cdx.json"))
		if err != nil {
			return err
		}
		if len(lists) == 0 {
			return fmt.Errorf("the list of contents of image %s is missing in %s", name, o.images)
		}
		for _, file := range append(lists, archive) {
			if err := copyFile(file, filepath.Join(o.out, filepath.Base(file))); err != nil {
				return err
			}
		}
	}
	return nil
}

// imageTag reads the tag of the image in an OCI archive.
func imageTag(archive string) (string, error) {
	file, err := os.Open(archive)
	if err != nil {
		return "", err
	}
	defer file.Close()
	for r := tar.NewReader(file); ; {
		header, err := r.Next()
		if err != nil {
			return "", fmt.Errorf("%s: find index.json: %w", archive, err)
		}
		if header.Name != "index.json" {
			continue
		}
		var index struct {
			Manifests []struct{ Annotations map[string]string }
		}
		if err := json.NewDecoder(r).Decode(&index); err != nil {
			return "", fmt.Errorf("%s: read index.json: %w", archive, err)
		}
		if len(index.Manifests) != 1 {
			return "", fmt.Errorf("%s: index.json names %d images, not one", archive, len(index.Manifests))
		}
		return index.Manifests[0].Annotations["org.opencontainers.image.ref.name"], nil
	}
}

// makeChart packages the chart, with the release as its version and as the tag of its images, and renders install.yaml
// from the package.
func makeChart(ctx context.Context, o options) (err error) {
	if err := components.Build(ctx, os.Stderr, o.root, components.Helm); err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "pitcrew-chart-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	version := strings.TrimPrefix(o.version, "v")
	if _, err := helm(ctx, o, "package", filepath.Join(o.root, "manifests", "chart"),
		"--version", version, "--app-version", o.version, "--destination", dir); err != nil {
		return err
	}
	name := "pitcrew-" + version + ".tgz"
	if err := repack(filepath.Join(dir, name), filepath.Join(o.out, name), o.epoch); err != nil {
		return err
	}
	rendered, err := helm(ctx, o, "template", "pitcrew", filepath.Join(o.out, name), "--namespace", "pitcrew",
		"--values", filepath.Join(o.root, "manifests", "install-values.yaml"))
	if err != nil {
		return err
	}
	text := "# The chart of Pitcrew " + o.version + ", rendered with manifests/install-values.yaml.\n" + string(rendered)
	if err := os.WriteFile(filepath.Join(o.out, "install.yaml"), []byte(text), 0o644); err != nil {
		return err
	}
	// install.yaml has no policy.
	policy, err := os.ReadFile(filepath.Join(o.root, "manifests", "policy.yaml"))
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(o.out, "policy.yaml"), policy, 0o644)
}

func helm(ctx context.Context, o options, args ...string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, components.Helm.Path(o.root), args...)
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("helm %s: %w\n%s", args[0], err, stderr.String())
	}
	return out, nil
}

// sumAll writes the checksums of all files as sha256sum does.
func sumAll(_ context.Context, o options) error {
	entries, err := os.ReadDir(o.out)
	if err != nil {
		return err
	}
	var sums strings.Builder
	for _, entry := range entries {
		sum, err := checksum(filepath.Join(o.out, entry.Name()))
		if err != nil {
			return err
		}
		fmt.Fprintf(&sums, "%s  %s\n", sum, entry.Name())
	}
	return os.WriteFile(filepath.Join(o.out, "checksums.txt"), []byte(sums.String()), 0o644)
}

// checksum returns the SHA-256 of a file in hexadecimal digits.
func checksum(path string) (string, error) {
	file, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer file.Close()
	hash := sha256.New()
	if _, err := io.Copy(hash, file); err != nil {
		return "", err
	}
	return fmt.Sprintf("%x", hash.Sum(nil)), nil
}

func copyFile(from, to string) (err error) {
	source, err := os.Open(from)
	if err != nil {
		return err
	}
	defer source.Close()
	target, err := os.Create(to)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, target.Close()) }()
	_, err = io.Copy(target, source)
	return err
}
