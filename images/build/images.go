package main

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// repository is where the images are published.
const repository = "ghcr.io/pitcrew-dev/"

// Where monitors and documentation expect the plugins.
const (
	plugins  = "/opt/pitcrew/bin/"
	monitors = "/opt/pitcrew/monitors/"
)

// image describes the contents of an image.
type image struct {
	name, description string
	// user is user:group; the entrypoint takes the pod's args.
	user, entrypoint string
	// debian are the packages below it.
	debian []string
	// carrier is true if its plugins run in another container.
	carrier bool
	// layers are what it adds to them, the least often changed first.
	layers func(p *platform) ([][]file, error)
}

// The packages of every image, and those for programs that load libraries: the plugins that open NVML or DCGM, and the
// libraries of vendors.
var (
	trust = []string{"ca-certificates"}
	glibc = append([]string{"base-files", "gcc-12-base", "libc6", "libgcc-s1", "libstdc++6"}, trust...)
)

// images are the images, as the Dockerfiles beside this folder make them.
var images = []image{
	{
		name: "npd-plugins", description: "Node Problem Detector with Pitcrew's plugins and monitors, and the program of repair Jobs",
		user: "0:0", entrypoint: "/node-problem-detector", debian: glibc,
		layers: func(p *platform) ([][]file, error) {
			detector, err := p.program(nodeProblemDetector, "/node-problem-detector")
			if err != nil {
				return nil, err
			}
			repair, err := p.program("repair", plugins+"repair")
			if err != nil {
				return nil, err
			}
			ours, err := p.detection()
			return [][]file{{detector}, append(ours, repair)}, err
		},
	},
	{
		name: "remediator", description: "Pitcrew's controller: taints sick nodes and restarts the jobs on them",
		user: "65532:65532", entrypoint: "/remediator", debian: trust,
		// The kubectl plugin is for the chart's pre-delete hook.
		layers: func(p *platform) ([][]file, error) {
			return p.programs(map[string]string{"remediator": "/remediator", "kubectl-pitcrew": "/kubectl-pitcrew"})
		},
	},
	{
		name: "preflight", description: "Init container that tests the nodes of a job before it begins",
		user: "65532:65532", entrypoint: plugins + "preflight", debian: append([]string{"busybox-static"}, glibc...),
		layers: func(p *platform) ([][]file, error) {
			layers, err := p.programs(map[string]string{
				"preflight": plugins + "preflight", "gpucount": plugins + "gpucount", "ecc": plugins + "ecc", "hca": plugins + "hca",
			})
			// The checks' own state: it must not be that of the node's Node Problem Detector.
			return append(layers, []file{{path: "/run/pitcrew", mode: os.ModeDir | os.ModeSticky | 0o777}}), err
		},
	},
	{
		name: "plugins", description: "Pitcrew's plugins and monitors, for a Node Problem Detector that is there already",
		user: "0:0", entrypoint: "/install", debian: trust, carrier: true,
		layers: func(p *platform) ([][]file, error) {
			install, err := p.program("install", "/install")
			if err != nil {
				return nil, err
			}
			ours, err := p.detection()
			return [][]file{append(ours, install)}, err
		},
	},
}

// chosen returns the images of those names, or all.
func chosen(names []string) ([]image, error) {
	if len(names) == 0 {
		return images, nil
	}
	var all []image
	for _, name := range names {
		i := slices.IndexFunc(images, func(i image) bool { return i.name == name })
		if i < 0 {
			return nil, fmt.Errorf("-only: there is no image %q", name)
		}
		all = append(all, images[i])
	}
	return all, nil
}

// programs returns one layer with programs, by name, at their places.
func (p *platform) programs(places map[string]string) ([][]file, error) {
	var files []file
	for name, to := range places {
		f, err := p.program(name, to)
		if err != nil {
			return nil, err
		}
		files = append(files, f)
	}
	return [][]file{files}, nil
}

// detection returns all plugins and all monitors.
func (p *platform) detection() ([]file, error) {
	folders, err := os.ReadDir(filepath.Join(p.root, "plugins"))
	if err != nil {
		return nil, err
	}
	var files []file
	for _, folder := range folders {
		f, err := p.program(folder.Name(), plugins+folder.Name())
		if err != nil {
			return nil, err
		}
		files = append(files, f)
	}
	source := filepath.Join(p.root, "monitors")
	err = filepath.WalkDir(source, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() || !strings.HasSuffix(path, ".json") {
			return err
		}
		relative, err := filepath.Rel(source, path)
		if err != nil {
			return err
		}
		content, err := os.ReadFile(path)
		files = append(files, file{path: monitors + filepath.ToSlash(relative), mode: 0o644, content: content})
		return err
	})
	return files, err
}
