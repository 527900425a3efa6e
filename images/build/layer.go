package main

import (
	"archive/tar"
	"bytes"
	"cmp"
	"io"
	"io/fs"
	"maps"
	"path"
	"slices"
	"strings"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// file is a file, folder or symbolic link of an image. It belongs to root.
type file struct {
	path string
	mode fs.FileMode
	// link is what a symbolic link points to.
	link    string
	content []byte
}

// layer makes a layer of files.
func layer(files []file, epoch time.Time) (v1.Layer, error) {
	packed, err := archive(files, epoch)
	if err != nil {
		return nil, err
	}
	return tarball.LayerFromOpener(func() (io.ReadCloser, error) {
		return io.NopCloser(bytes.NewReader(packed)), nil
	}, tarball.WithMediaType(types.OCILayer), tarball.WithCompressedCaching)
}

// archive returns a tar archive of files, and of the folders that they are in, in the order of their names.
func archive(files []file, epoch time.Time) ([]byte, error) {
	all := map[string]file{}
	for _, f := range files {
		for folder := path.Dir(f.path); folder != "/"; folder = path.Dir(folder) {
			if _, ok := all[folder]; !ok {
				all[folder] = file{path: folder, mode: fs.ModeDir | 0o755}
			}
		}
		all[f.path] = f
	}
	var packed bytes.Buffer
	w := tar.NewWriter(&packed)
	for _, f := range slices.SortedFunc(maps.Values(all), func(a, b file) int { return cmp.Compare(a.path, b.path) }) {
		if err := w.WriteHeader(header(f, epoch)); err != nil {
			return nil, err
		}
		if _, err := w.Write(f.content); err != nil {
			return nil, err
		}
	}
	err := w.Close()
	return packed.Bytes(), err
}

func header(f file, epoch time.Time) *tar.Header {
	h := &tar.Header{Name: strings.TrimPrefix(f.path, "/"), Mode: int64(f.mode.Perm()), ModTime: epoch, Size: int64(len(f.content))}
	switch {
	case f.link != "":
		h.Typeflag, h.Linkname, h.Mode = tar.TypeSymlink, f.link, 0o777
	case f.mode.IsDir():
		h.Typeflag, h.Name = tar.TypeDir, h.Name+"/"
	default:
		h.Typeflag = tar.TypeReg
	}
	if f.mode&fs.ModeSticky != 0 {
		h.Mode |= 0o1000
	}
	return h
}
