package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"text/template"
)

// platform is one for which the kubectl plugin is released, with the names that Go and krew use.
type platform struct{ os, arch string }

var platforms = []platform{{"linux", "amd64"}, {"linux", "arm64"}, {"darwin", "amd64"}, {"darwin", "arm64"}, {"windows", "amd64"}}

// program is the name of the kubectl plugin's binary.
func (p platform) program() string {
	if p.os == "windows" {
		return "kubectl-pitcrew.exe"
	}
	return "kubectl-pitcrew"
}

// archive is the name of the archive of the kubectl plugin.
func (p platform) archive() string {
	name := "kubectl-pitcrew_" + p.os + "_" + p.arch
	if p.os == "windows" {
		return name + ".zip" // Windows opens no tar archive by a double click
	}
	return name + ".tar.gz"
}

// makePlugin makes the archives of the kubectl plugin and the krew manifest.
func makePlugin(ctx context.Context, o options) (err error) {
	built, err := os.MkdirTemp("", "pitcrew-plugin-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(built)) }()
	sums := map[platform]string{}
	for _, p := range o.platforms {
		files, err := p.files(ctx, o, built)
		if err != nil {
			return err
		}
		archive := filepath.Join(o.out, p.archive())
		pack := packTar
		if p.os == "windows" {
			pack = packZip
		}
		if err := pack(archive, files, o.epoch); err != nil {
			return err
		}
		if sums[p], err = checksum(archive); err != nil {
			return err
		}
	}
	manifest, err := krew(o, sums)
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(o.out, "krew.yaml"), []byte(manifest), 0o644)
}

// files compiles the plugin and returns what its archive holds.
func (p platform) files(ctx context.Context, o options, built string) ([]file, error) {
	path := filepath.Join(built, p.os+"_"+p.arch, p.program())
	cmd := exec.CommandContext(ctx, "go", "build", "-trimpath", "-gcflags=all=-dwarf=false", "-buildvcs=false", "-o", path,
		"-ldflags=-s -w -X=github.com/pitcrew-dev/pitcrew/internal/version.release="+o.version, "./kubectl-pitcrew")
	cmd.Dir, cmd.Stderr = o.root, os.Stderr
	// The linker records these in the program.
	cmd.Env = append(os.Environ(), "GOWORK=off", "GOFLAGS=", "CGO_ENABLED=0", "GOOS="+p.os, "GOARCH="+p.arch, "GOAMD64=v1", "GOARM64=v8.0")
	if err := cmd.Run(); err != nil {
		return nil, fmt.Errorf("build kubectl-pitcrew for %s/%s: %w", p.os, p.arch, err)
	}
	sources := []string{path, filepath.Join(o.root, "LICENSE")}
	if p.os != "windows" {
		sources = append(sources, filepath.Join(o.root, "kubectl-pitcrew", "kubectl_complete-pitcrew"))
	}
	var files []file
	for _, source := range sources {
		content, err := os.ReadFile(source)
		if err != nil {
			return nil, err
		}
		files = append(files, file{name: filepath.Base(source), executable: filepath.Base(source) != "LICENSE", content: content})
	}
	return files, nil
}

// krew fills in the manifest of the plugin.
func krew(o options, sums map[platform]string) (string, error) {
	type row struct{ OS, Arch, Archive, SHA256, Program string }
	values := struct {
		Version   string
		Platforms []row
	}{Version: o.version}
	for _, p := range o.platforms {
		values.Platforms = append(values.Platforms, row{p.os, p.arch, p.archive(), sums[p], p.program()})
	}
	made, err := template.New("krew.yaml").Option("missingkey=error").ParseFiles(filepath.Join(o.root, "kubectl-pitcrew", "krew.yaml"))
	if err != nil {
		return "", err
	}
	var text strings.Builder
	err = made.Execute(&text, values)
	return text.String(), err
}
