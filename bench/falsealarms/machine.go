package main

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/tools/txtar"
)

// machine is one healthy machine.
type machine struct {
	// name is the file's. about is its first line, source where its form is documented.
	name, about, source string
	// gpus are the PCI addresses of its GPUs of NVIDIA in the driver's form.
	gpus   []string
	checks []check
	// files by their path below the folder that $DIR stands for.
	files map[string]string
}

// check is a plugin with its arguments on a machine.
type check struct {
	condition, plugin string
	args              []string
}

// readMachine reads a machine. A line `CONDITION: ARGUMENTS` of its comment is a check, a line `CONDITION < FIXTURE` one with the
// arguments and the files of a fixture of its plugin.
func readMachine(root, file string) (*machine, error) {
	archive, err := txtar.ParseFile(file)
	if err != nil {
		return nil, err
	}
	m := &machine{name: strings.TrimSuffix(filepath.Base(file), ".txtar"), files: map[string]string{}}
	for _, f := range archive.Files {
		m.files[f.Name] = string(f.Data)
	}
	for line := range strings.Lines(string(archive.Comment)) {
		line = strings.TrimSpace(line)
		key, value, isPair := strings.Cut(line, ": ")
		condition, fixture, isFixture := strings.Cut(line, " < ")
		switch {
		case m.about == "":
			m.about = line
		case isPair && key == "source":
			m.source = value
		case isPair && key == "gpus":
			m.gpus = strings.Fields(value)
		case isFixture:
			if value, err = m.addFixture(root, condition, fixture); err == nil {
				err = m.addCheck(root, condition, strings.Fields(value))
			}
		case isPair:
			err = m.addCheck(root, key, strings.Fields(value))
		case line != "":
			err = fmt.Errorf("line %q is neither `key: value` nor `condition < fixture`", line)
		}
		if err != nil {
			return nil, err
		}
	}
	if m.source == "" || len(m.checks) == 0 {
		return nil, fmt.Errorf("no source, or no check")
	}
	return m, nil
}

// addCheck adds a check with the arguments of the shipped monitor before those of the machine.
func (m *machine) addCheck(root, condition string, args []string) error {
	data, err := os.ReadFile(filepath.Join(root, "monitors", condition+".json"))
	if err != nil {
		return err
	}
	var monitor struct {
		Rules []struct {
			Path string
			Args []string
		}
	}
	if err := json.Unmarshal(data, &monitor); err != nil {
		return fmt.Errorf("monitor of %s: %w", condition, err)
	}
	rule := monitor.Rules[0]
	m.checks = append(m.checks, check{condition, path.Base(rule.Path), slices.Concat(rule.Args, args)})
	return nil
}

// addFixture takes over the files of a fixture, below a folder of its own, and returns its arguments.
func (m *machine) addFixture(root, folder, fixture string) (args string, err error) {
	archive, err := txtar.ParseFile(filepath.Join(root, fixture))
	if err != nil {
		return "", err
	}
	for _, f := range archive.Files {
		if f.Name != "want" {
			m.files[path.Join(folder, f.Name)] = string(f.Data)
		}
	}
	for line := range strings.Lines(string(archive.Comment)) {
		if rest, ok := strings.CutPrefix(line, "args:"); ok {
			return strings.ReplaceAll(rest, "$DIR", "$DIR/"+folder), nil
		}
	}
	return "", fmt.Errorf("%s has no line `args:`", fixture)
}

// find returns the first of the machine's files that the pattern matches.
func (m *machine) find(pattern string) (file string, ok bool) {
	for _, name := range slices.Sorted(maps.Keys(m.files)) {
		if ok, err := path.Match(pattern, name); ok && err == nil {
			return name, true
		}
	}
	return "", false
}

// reads reports whether the check reads the file.
func (c check) reads(file string) bool {
	return slices.ContainsFunc(c.args, func(arg string) bool {
		_, below, ok := strings.Cut(arg, "$DIR/")
		return ok && (file == below || strings.HasPrefix(file, below+"/"))
	})
}
