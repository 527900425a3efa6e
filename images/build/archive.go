package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// write makes the image for all platforms and returns the digest of its index.
func (i image) write(ctx context.Context, o options, platforms []platform) (v1.Hash, error) {
	index := mutate.IndexMediaType(empty.Index, types.OCIImageIndex)
	for _, p := range platforms {
		base, used, err := p.base(ctx, i.debian)
		if err != nil {
			return v1.Hash{}, err
		}
		layers, err := i.layers(&p)
		if err != nil {
			return v1.Hash{}, err
		}
		layers = append([][]file{base}, layers...)
		if err := linked(layers); err != nil && !i.carrier {
			return v1.Hash{}, fmt.Errorf("linux/%s: %w", p.architecture, err)
		}
		made, err := i.assemble(o, p.architecture, layers)
		if err != nil {
			return v1.Hash{}, err
		}
		if err := i.list(o, p.architecture, layers, used); err != nil {
			return v1.Hash{}, err
		}
		index = mutate.AppendManifests(index, mutate.IndexAddendum{
			Add:        made,
			Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: "linux", Architecture: p.architecture}},
		})
	}
	if err := i.save(o, index); err != nil {
		return v1.Hash{}, err
	}
	return index.Digest()
}

// assemble makes the image for one platform.
func (i image) assemble(o options, architecture string, layers [][]file) (v1.Image, error) {
	made := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON)
	made, err := mutate.ConfigFile(made, &v1.ConfigFile{
		OS: "linux", Architecture: architecture, Created: v1.Time{Time: o.epoch}, RootFS: v1.RootFS{Type: "layers"},
		Config: v1.Config{
			User:       i.user,
			Entrypoint: []string{i.entrypoint},
			WorkingDir: "/",
			Env:        []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"},
			Labels: map[string]string{
				"org.opencontainers.image.title":       i.name,
				"org.opencontainers.image.description": i.description,
				"org.opencontainers.image.source":      "https://github.com/pitcrew-dev/pitcrew",
				"org.opencontainers.image.licenses":    "Apache-2.0",
				"org.opencontainers.image.version":     o.version,
				"org.opencontainers.image.revision":    o.revision,
			},
		},
	})
	if err != nil {
		return nil, err
	}
	for _, files := range layers {
		packed, err := layer(files, o.epoch)
		if err != nil {
			return nil, err
		}
		made, err = mutate.Append(made, mutate.Addendum{
			Layer: packed, History: v1.History{Created: v1.Time{Time: o.epoch}, CreatedBy: "images/build"},
		})
		if err != nil {
			return nil, err
		}
	}
	return made, nil
}

// save writes an OCI layout as one file. The annotations name the image for those who import it: containerd by the
// first, skopeo and podman by the second.
func (i image) save(o options, index v1.ImageIndex) (err error) {
	dir, err := os.MkdirTemp("", "pitcrew-layout-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	path, err := layout.Write(dir, empty.Index)
	if err != nil {
		return err
	}
	name := repository + i.name + ":" + o.version
	if err := path.AppendIndex(index, layout.WithAnnotations(map[string]string{
		"io.containerd.image.name": name, "org.opencontainers.image.ref.name": o.version,
	})); err != nil {
		return err
	}
	packed, err := pack(dir, o)
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(o.out, i.name+".tar"), packed, 0o644)
}

// pack returns the files below dir as a tar archive.
func pack(dir string, o options) ([]byte, error) {
	var files []file
	err := filepath.WalkDir(dir, func(path string, entry os.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		content, err := os.ReadFile(path)
		files = append(files, file{path: strings.TrimPrefix(path, dir), mode: 0o644, content: content})
		return err
	})
	if err != nil {
		return nil, err
	}
	return archive(files, o.epoch)
}
