package components

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"strings"

	"github.com/pitcrew-dev/pitcrew/e2e/components/fetch"
)

// VariableComponents is the environment variable that forbids with the value "build" to fetch releases: everything is compiled.
const VariableComponents = "COMPONENTS"

// Where the releases are.
var (
	kubernetesReleases = "https://dl.k8s.io/release/"
	githubReleases     = "https://github.com/"
)

// kubernetesRelease are programs of Kubernetes. Beside each is its checksum.
func kubernetesRelease(version, arch string, programs ...string) (files []fetch.File) {
	for _, program := range programs {
		url := kubernetesReleases + version + "/bin/linux/" + arch + "/" + program
		files = append(files, fetch.File{URL: url, Sums: url + ".sha256"})
	}
	return files
}

func etcdRelease(version, arch string) fetch.File {
	folder := githubReleases + "etcd-io/etcd/releases/download/" + version + "/"
	return fetch.File{URL: folder + "etcd-" + version + "-linux-" + arch + ".tar.gz", Sums: folder + "SHA256SUMS", Member: "etcd"}
}

// releaseFiles lists what is fetched in place of a build, nothing for what is only compiled.
func (r recipe) releaseFiles(ctx context.Context) ([]fetch.File, error) {
	if r.release == nil || r.arch != "" {
		return nil, nil
	}
	etcd := ""
	if r.Module == Kube.Module {
		var err error
		if etcd, err = (Component{Dir: r.Dir, Module: "go.etcd.io/etcd/server/v3"}).version(ctx, r.root); err != nil {
			return nil, err
		}
	}
	return r.release(r.version, etcd), nil
}

// releaseStamp is the stamp of what was fetched.
func releaseStamp(files []fetch.File) string {
	text := "fetched\n"
	for _, f := range files {
		text += f.URL + "\n"
	}
	return text
}

// programName is the name of the program in a file of a release.
func programName(f fetch.File) string {
	if f.Member != "" {
		return path.Base(f.Member)
	}
	return path.Base(f.URL)
}

// fetchReleases fetches what it can of the missing components and returns the others, which are to be compiled. It only fails if a file is not
// what it should be.
func fetchReleases(ctx context.Context, progress io.Writer, missing []recipe) (others []recipe, err error) {
	var urls, names []string
	for _, r := range missing {
		for _, f := range r.files {
			urls = append(urls, f.URL)
		}
		if len(r.files) > 0 {
			names = append(names, r.Name)
		}
	}
	if len(urls) == 0 {
		return missing, nil
	}
	if progress == nil {
		progress = io.Discard
	}
	fetcher, err := fetch.New()
	if err == nil {
		err = fetcher.Reachable(ctx, urls...)
	}
	if err != nil {
		fmt.Fprintf(progress, "compiles %s: their releases cannot be reached (%v)\n", strings.Join(names, ", "), err)
		return missing, nil
	}
	for _, r := range missing {
		if len(r.files) == 0 {
			others = append(others, r)
			continue
		}
		err := r.fetch(ctx, progress, fetcher)
		if refused := (*fetch.Refused)(nil); errors.As(err, &refused) {
			return nil, fmt.Errorf("fetch %s: %w. With %s=build it is compiled", r.Name, err, VariableComponents)
		}
		if err != nil {
			fmt.Fprintf(progress, "compiles %s: its release cannot be fetched: %v\n", r.Name, err)
			others = append(others, r)
		}
	}
	return others, nil
}

// launcher starts one of several programs as the compiled one does.
const launcher = `#!/bin/sh
name=$1
shift
exec "${0%/*}/PROGRAMS/$name" "$@"
`

// fetch fetches the programs of a component. Several are put into a folder, behind a script that starts the one that is named first.
func (r recipe) fetch(ctx context.Context, progress io.Writer, fetcher *fetch.Fetcher) error {
	path := r.Path(r.root)
	unlock, err := lock(ctx, path+".lock")
	if err != nil {
		return err
	}
	defer unlock()
	if r.built() { // by another program meanwhile
		return nil
	}
	if err := r.unstamp(); err != nil {
		return err
	}
	fmt.Fprintf(progress, "fetching %s %s from %s\n", r.Name, r.version, r.files[0].URL)
	if len(r.files) == 1 {
		err = fetcher.Fetch(ctx, r.files[0], path)
	} else {
		err = r.fetchSeveral(ctx, fetcher)
	}
	if err != nil {
		return err
	}
	return os.WriteFile(path+".stamp", []byte(releaseStamp(r.files)), 0o644)
}

func (r recipe) fetchSeveral(ctx context.Context, fetcher *fetch.Fetcher) error {
	path := r.Path(r.root)
	programs := path + ".programs"
	if err := os.MkdirAll(programs, 0o755); err != nil {
		return err
	}
	for _, f := range r.files {
		if err := fetcher.Fetch(ctx, f, filepath.Join(programs, programName(f))); err != nil {
			return err
		}
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) { // a program that runs cannot be written to
		return err
	}
	return os.WriteFile(path, []byte(strings.ReplaceAll(launcher, "PROGRAMS", filepath.Base(programs))), 0o755)
}
