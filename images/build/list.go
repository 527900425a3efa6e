package main

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"debug/buildinfo"
	"encoding/hex"
	"fmt"
	"maps"
	"net/url"
	"os"
	"path"
	"path/filepath"
	"slices"
	"time"

	cdx "github.com/CycloneDX/cyclonedx-go"
)

// list writes what is in an image as a CycloneDX document: the Go programs with the modules that the linker recorded in
// them, and the Debian packages.
func (i image) list(o options, architecture string, layers [][]file, packages []debianPackage) error {
	subject := cdx.Component{
		BOMRef: i.name, Type: cdx.ComponentTypeContainer, Name: repository + i.name, Version: o.version,
		PackageURL: fmt.Sprintf("pkg:oci/%s@%s?arch=%s", i.name, url.QueryEscape(o.version), architecture),
	}
	parts := map[string]cdx.Component{}
	needs := map[string][]string{}
	for _, d := range packages {
		c := d.component()
		parts[c.BOMRef] = c
		needs[subject.BOMRef] = append(needs[subject.BOMRef], c.BOMRef)
	}
	for _, f := range slices.Concat(layers[1:]...) {
		info, err := buildinfo.Read(bytes.NewReader(f.content))
		if err != nil {
			continue // a monitor
		}
		sum := sha256.Sum256(f.content)
		program := cdx.Component{
			BOMRef: f.path, Type: cdx.ComponentTypeApplication, Name: path.Base(f.path), Version: o.version,
			Hashes: &[]cdx.Hash{{Algorithm: cdx.HashAlgoSHA256, Value: hex.EncodeToString(sum[:])}},
		}
		if info.Main.Path != ours {
			program.Version = info.Main.Version
		}
		parts[program.BOMRef] = program
		needs[subject.BOMRef] = append(needs[subject.BOMRef], program.BOMRef)
		for _, m := range modules(info) {
			parts[m.BOMRef] = m
			needs[program.BOMRef] = append(needs[program.BOMRef], m.BOMRef)
		}
	}
	bom := cdx.NewBOM()
	bom.Metadata = &cdx.Metadata{Timestamp: o.epoch.Format(time.RFC3339), Component: &subject}
	components := slices.SortedFunc(maps.Values(parts), func(a, b cdx.Component) int { return cmp.Compare(a.BOMRef, b.BOMRef) })
	bom.Components = &components
	var dependencies []cdx.Dependency
	for _, ref := range slices.Sorted(maps.Keys(needs)) {
		on := slices.Sorted(slices.Values(needs[ref]))
		dependencies = append(dependencies, cdx.Dependency{Ref: ref, Dependencies: &on})
	}
	bom.Dependencies = &dependencies
	out, err := os.Create(filepath.Join(o.out, fmt.Sprintf("%s-%s.cdx.json", i.name, architecture)))
	if err != nil {
		return err
	}
	return cmp.Or(cdx.NewBOMEncoder(out, cdx.BOMFileFormatJSON).SetPretty(true).Encode(bom), out.Close())
}

// ours is the main module of this repository's programs. The linker records no version for it.
const ours = "github.com/pitcrew-dev/pitcrew"

// modules are what a program is made from, this repository excepted.
func modules(info *buildinfo.BuildInfo) []cdx.Component {
	all := []cdx.Component{module("stdlib", info.GoVersion)}
	if info.Main.Path != ours {
		all = append(all, module(info.Main.Path, info.Main.Version))
	}
	for _, m := range info.Deps {
		if m.Replace != nil {
			m = m.Replace
		}
		all = append(all, module(m.Path, m.Version))
	}
	return all
}

func module(path, version string) cdx.Component {
	ref := fmt.Sprintf("pkg:golang/%s@%s", path, url.QueryEscape(version))
	return cdx.Component{BOMRef: ref, Type: cdx.ComponentTypeLibrary, Name: path, Version: version, PackageURL: ref}
}

func (d debianPackage) component() cdx.Component {
	ref := fmt.Sprintf("pkg:deb/debian/%s@%s?arch=%s&distro=debian-12", url.QueryEscape(d.name), url.QueryEscape(d.version), d.architecture)
	return cdx.Component{BOMRef: ref, Type: cdx.ComponentTypeLibrary, Name: d.name, Version: d.version, PackageURL: ref}
}
