package main

import (
	"bytes"
	"debug/elf"
	"fmt"
	"path"
	"slices"
)

// linked checks that the programs of an image find their libraries in it, in versions that they can use: a plugin
// compiled against a newer C library than the image's would not start.
func linked(layers [][]file) error {
	has := map[string][]byte{}
	for _, f := range slices.Concat(layers...) {
		has[path.Base(f.path)] = f.content
	}
	for _, f := range slices.Concat(layers[1:]...) {
		program, err := elf.NewFile(bytes.NewReader(f.content))
		if err != nil {
			continue // a monitor
		}
		if err := loads(program, has); err != nil {
			return fmt.Errorf("%s: %w", f.path, err)
		}
	}
	return nil
}

// loads checks a program against the libraries by name.
func loads(program *elf.File, has map[string][]byte) error {
	if libraries, err := program.ImportedLibraries(); err != nil || len(libraries) == 0 {
		return err // static
	}
	needs, err := program.DynamicVersionNeeds()
	if err != nil {
		return err
	}
	for _, need := range needs {
		library, err := elf.NewFile(bytes.NewReader(has[need.Name]))
		if err != nil {
			return fmt.Errorf("%s is not in the image", need.Name)
		}
		defined, err := library.DynamicVersions()
		if err != nil {
			return fmt.Errorf("%s: %w", need.Name, err)
		}
		for _, version := range need.Needs {
			if !slices.ContainsFunc(defined, func(d elf.DynamicVersion) bool { return d.Name == version.Dep }) {
				return fmt.Errorf("it needs %s of %s, which the image's library does not have: compile it on an older distribution", version.Dep, need.Name)
			}
		}
	}
	return nil
}
