package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"
)

// imageOf returns the instructions of the Dockerfile of the image with DCGM, each on one line, without comments.
func imageOf(t *testing.T) []string {
	t.Helper()
	data, err := os.ReadFile("../../images/npd-plugins-dcgm/Dockerfile")
	if err != nil {
		t.Fatal(err)
	}
	text := regexp.MustCompile(`(?m)^#.*\n`).ReplaceAllString(string(data), "")
	return strings.Split(strings.TrimSpace(strings.ReplaceAll(text, "\\\n", "")), "\n")
}

// Stages and arguments of the Dockerfile are declared before they are used.
func TestTheImageNamesNothingUnknown(t *testing.T) {
	known := map[string]bool{}
	stages := map[string]bool{}
	global := true
	for _, line := range imageOf(t) {
		name, rest, _ := strings.Cut(line, " ")
		switch name {
		case "":
			continue
		case "ARG":
			argument, _, _ := strings.Cut(rest, "=")
			known[argument] = true
			continue
		case "FROM":
			if image := strings.Fields(rest)[0]; strings.HasPrefix(image, "$") && (!global || !known[image[1:]]) && image != "$PLUGINS" {
				t.Errorf("%s: no such argument before the first stage", line)
			}
			if fields := strings.Fields(rest); len(fields) == 3 {
				stages[fields[2]] = true
			}
			if global && !known["PLUGINS"] {
				t.Error("PLUGINS is not declared before the first stage")
			}
			known, global = map[string]bool{}, false
			continue
		case "COPY":
			from := regexp.MustCompile(`--from=(\S+)`).FindStringSubmatch(rest)
			if from == nil || !stages[from[1]] {
				t.Errorf("%s: no such stage", line)
			}
		}
		for _, local := range regexp.MustCompile(`\b([a-z]+)=`).FindAllStringSubmatch(rest, -1) {
			known[local[1]] = true
		}
		for _, used := range regexp.MustCompile(`\$([A-Za-z]+)`).FindAllStringSubmatch(rest, -1) {
			if !known[used[1]] {
				t.Errorf("%s: %s is not declared in this stage", line, used[1])
			}
		}
	}
}

// The step that copies NVIDIA's files puts them where this plugin looks, and fails if a package lacks one.
func TestTheImageHasEveryFileOrIsNotBuilt(t *testing.T) {
	var copies string
	for _, line := range imageOf(t) {
		if step, isRun := strings.CutPrefix(line, "RUN libraries="); isRun {
			copies = "libraries=" + step
		}
	}
	if copies == "" {
		t.Fatal("no step copies the libraries")
	}
	libraries := "usr/lib/" + map[string]string{"amd64": "x86_64", "arm64": "aarch64"}[runtime.GOARCH] + "-linux-gnu"
	if !slices.Contains(libraryFolders, libraries) {
		t.Errorf("the plugin does not look in %s", libraries)
	}
	files := []string{
		libraries + "/libdcgm.so.4", libraries + "/libdcgmmodulediag.so.4", nvvsFolder + "/nvvs", nvvsFolder + "/plugins/cuda12/libMemory.so",
		"usr/share/datacenter-gpu-manager-4/cudaless", "usr/bin/dcgmi",
	}
	run := func(missing string) (string, error) {
		root := t.TempDir()
		for _, file := range files {
			if file == missing {
				continue
			}
			path := filepath.Join(root, file)
			if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(path, nil, 0o755); err != nil {
				t.Fatal(err)
			}
		}
		inRoot := regexp.MustCompile(`(\s)(/usr|/out|\$libraries)`).ReplaceAllString(copies, "${1}"+root+"${2}")
		cmd := exec.CommandContext(t.Context(), "sh", "-c", inRoot)
		cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "CUDA=12"}
		if out, err := cmd.CombinedOutput(); err != nil {
			return string(out), err
		}
		for _, file := range files {
			if _, err := os.Stat(filepath.Join(root, "out", file)); err != nil {
				t.Error(err)
			}
		}
		return "", nil
	}
	if out, err := run(""); err != nil {
		t.Fatal(err, out)
	}
	for _, file := range files {
		if _, err := run(file); err == nil {
			t.Errorf("without %s it is built", file)
		}
	}
}
