package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// installation is a DCGM 4 on disk.
type installation struct {
	// libraries is the folder of libdcgm.so.4 and its modules.
	libraries string
	// nvvs is the folder of the program that runs the tests, and of its plugins.
	nvvs string
	// driver is the folder of the driver's libraries, "" where the loader finds them.
	driver string
}

const (
	library = "libdcgm.so.4"
	module  = "libdcgmmodulediag.so.4"
	// nvvsFolder is where NVIDIA's packages put the program.
	nvvsFolder = "usr/libexec/datacenter-gpu-manager-4"
	// nvvsVariable names that folder to DCGM.
	nvvsVariable = "NVVS_BIN_PATH"
)

// libraryFolders are where NVIDIA's packages and installers put libraries.
var libraryFolders = []string{"usr/lib/x86_64-linux-gnu", "usr/lib/aarch64-linux-gnu", "usr/lib64", "usr/lib", "lib64", ""}

// mounted is where the Jobs of Pitcrew have the node's root.
const mounted = "/host"

// install finds DCGM: where the flags say, else in this container, below the driver's root or on the node.
func (r *reader) install() (installation, error) {
	driver := r.source.DriverRoot
	if driver == "" {
		driver = "/run/nvidia/driver"
	}
	roots := []string{"/", driver, mounted}
	if r.root != "" {
		roots = []string{r.root}
	}
	found := installation{libraries: r.libraries, nvvs: r.nvvs, driver: folderOf(driver, "libnvidia-ml.so.1")}
	if found.libraries == "" {
		for _, root := range roots {
			if found.libraries = folderOf(root, library); found.libraries != "" {
				break
			}
		}
		if found.libraries == "" {
			return found, fmt.Errorf("DCGM: no %s below %s (%s)", library, strings.Join(roots, ", "), page)
		}
	}
	if r.hostengine != "" {
		return found, nil
	}
	if found.nvvs == "" {
		found.nvvs = os.Getenv(nvvsVariable)
	}
	var tried []string
	for _, root := range roots {
		if folder := filepath.Join(root, nvvsFolder); found.nvvs == "" {
			tried = append(tried, folder)
			if _, err := os.Stat(filepath.Join(folder, "nvvs")); err == nil {
				found.nvvs = folder
			}
		}
	}
	if found.nvvs == "" {
		return found, fmt.Errorf("DCGM: no program nvvs in %s (%s)", strings.Join(tried, ", "), page)
	}
	if _, err := os.Stat(filepath.Join(found.nvvs, "nvvs")); err != nil {
		return found, fmt.Errorf("DCGM: no program nvvs: %w (%s)", err, page)
	}
	return found, nil
}

// folderOf is the folder of a library below a root, "" if it is not there.
func folderOf(root, name string) string {
	for _, folder := range libraryFolders {
		if _, err := os.Stat(filepath.Join(root, folder, name)); err == nil {
			return filepath.Join(root, folder)
		}
	}
	return ""
}

// load loads the library, those of the driver and the modules. The loader knows them by their names from then on, by which DCGM opens them.
func (i installation) load() error {
	for _, file := range i.files() {
		// Of a module that does not load, the engine says so if it needs it.
		if err := loadLibrary(file); err != nil && filepath.Base(file) == library {
			return err
		}
	}
	return bindLibrary(filepath.Join(i.libraries, library))
}

// files are the libraries, in the order in which they can be loaded.
func (i installation) files() []string {
	names := []string{}
	if i.driver != "" {
		names = append(names, filepath.Join(i.driver, "libnvidia-ml.so.1"))
	}
	names = append(names, filepath.Join(i.libraries, library))
	modules, _ := filepath.Glob(filepath.Join(i.libraries, "libdcgmmodule*.so.4")) // the pattern is well-formed
	return append(names, modules...)
}

// linkFolder is where nvvs finds the libraries, in the state directory. It links them alone: the folders of another root have a C library
// of their own, which would not fit to this container's loader.
const linkFolder = "dcgm-libraries"

// environment tells nvvs, which the engine starts, where it and its libraries are. remove removes what it has made.
func (i installation) environment(stateDir string) (remove func(), err error) {
	links := filepath.Join(stateDir, linkFolder)
	remove = func() { _ = os.RemoveAll(links) } // what stays is replaced by the next run
	remove()
	if err := os.MkdirAll(links, 0o755); err != nil {
		return nil, fmt.Errorf("DCGM: %w", err)
	}
	for _, pattern := range []string{
		filepath.Join(i.libraries, "libdcgm*.so*"), filepath.Join(i.driver, "libcuda.so*"), filepath.Join(i.driver, "libnvidia-*.so*"),
	} {
		files, err := filepath.Glob(pattern)
		if err != nil {
			return nil, err
		}
		for _, file := range files {
			if filepath.IsAbs(file) {
				err = errors.Join(err, os.Symlink(file, filepath.Join(links, filepath.Base(file))))
			}
		}
		if err != nil {
			return nil, fmt.Errorf("DCGM: %w", err)
		}
	}
	path := links
	if before := os.Getenv("LD_LIBRARY_PATH"); before != "" {
		path += ":" + before
	}
	return remove, errors.Join(os.Setenv("LD_LIBRARY_PATH", path), os.Setenv(nvvsVariable, i.nvvs))
}
