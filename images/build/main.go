// Command build makes the project's container images without Docker, a registry or root: it compiles the programs, lays
// them out on a base of pinned Debian packages and writes, for each image, an OCI archive with all platforms and one
// list of what is inside (CycloneDX) per platform. The same sources give the same bits.
//
//	make images
//	ctr images import bin/images/npd-plugins.tar
//	skopeo copy oci-archive:bin/images/npd-plugins.tar docker://REGISTRY/npd-plugins:VERSION
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// options are the flags.
type options struct {
	root, debs, out   string
	version, revision string
	architectures     []string
	only              []string
	unpinned          bool
	// epoch is the time of everything in the images.
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
		fmt.Fprintln(os.Stderr, "images:", err)
		os.Exit(1)
	}
}

func parse(args []string, env func(string) string) (options, error) {
	var o options
	var platforms, only string
	f := flag.NewFlagSet("build", flag.ContinueOnError)
	f.StringVar(&o.root, "root", "../..", "`folder` of the repository")
	f.StringVar(&o.debs, "debs", "", "`folder` with the packages of images/debian.lock (default bin/images/debian)")
	f.StringVar(&o.out, "out", "", "`folder` for archives and lists (default bin/images)")
	f.StringVar(&o.version, "version", "dev", "`tag` of the images")
	f.StringVar(&o.revision, "revision", "", "`commit` they are made from")
	f.StringVar(&platforms, "platforms", "linux/amd64,linux/arm64", "comma-separated `platforms`")
	f.BoolVar(&o.unpinned, "unpinned", false, "take other versions of the Debian packages than images/debian.lock has, to test with")
	f.StringVar(&only, "only", "", "comma-separated `names` of images instead of all")
	if err := f.Parse(args); err != nil {
		return o, err
	}
	var err error
	if o.root, err = filepath.Abs(o.root); err != nil {
		return o, err
	}
	if o.out == "" {
		o.out = filepath.Join(o.root, "bin", "images")
	}
	if o.debs == "" {
		o.debs = filepath.Join(o.root, "bin", "images", "debian")
	}
	for _, platform := range strings.Split(platforms, ",") {
		architecture, ok := strings.CutPrefix(platform, "linux/")
		if !ok {
			return o, fmt.Errorf("-platforms %q: the plugins are for linux", platform)
		}
		o.architectures = append(o.architectures, architecture)
	}
	if only != "" {
		o.only = strings.Split(only, ",")
	}
	o.epoch = time.Unix(0, 0).UTC()
	if text := env("SOURCE_DATE_EPOCH"); text != "" {
		seconds, err := strconv.ParseInt(text, 10, 64)
		if err != nil {
			return o, fmt.Errorf("SOURCE_DATE_EPOCH %q is not a number of seconds", text)
		}
		o.epoch = time.Unix(seconds, 0).UTC()
	}
	return o, nil
}

// run makes the images and prints their names and digests.
func run(ctx context.Context, o options, out io.Writer) (err error) {
	wanted, err := chosen(o.only)
	if err != nil {
		return err
	}
	packages, err := readLock(filepath.Join(o.root, "images", "debian.lock"))
	if err != nil {
		return err
	}
	if err := os.MkdirAll(o.out, 0o755); err != nil {
		return err
	}
	var platforms []platform
	for _, architecture := range o.architectures {
		p := platform{architecture: architecture, root: o.root, version: o.version, debs: o.debs, packages: packages, unpinned: o.unpinned}
		if err := p.compile(ctx); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, os.RemoveAll(p.bin)) }()
		platforms = append(platforms, p)
	}
	for _, i := range wanted {
		digest, err := i.write(ctx, o, platforms)
		if err != nil {
			return fmt.Errorf("%s: %w", i.name, err)
		}
		fmt.Fprintf(out, "%s:%s@%s\n", repository+i.name, o.version, digest)
	}
	return nil
}
