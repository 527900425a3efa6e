package main

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/klauspost/compress/zstd"
)

// detector is how NPD's program is called: a plugin holds only as a child of a process of this name.
const detector = "node-problem-detector"

// unpack writes the programs of the archive into a new folder below home, and the kit itself beside them under the name of NPD. The
// folder is that of this run alone: what runs from it was started by this run.
func unpack(ctx context.Context, home, self string) (folder string, err error) {
	archive := filepath.Join(home, "programs.tar.zst")
	file, err := os.Open(archive)
	if err != nil {
		return "", err
	}
	defer file.Close()
	r, err := zstd.NewReader(file, zstd.WithDecoderMaxWindow(128<<20))
	if err != nil {
		return "", err
	}
	defer r.Close()
	if folder, err = os.MkdirTemp(home, "programs-"); err != nil {
		return "", err
	}
	for programs := tar.NewReader(r); ctx.Err() == nil; {
		header, err := programs.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return folder, fmt.Errorf("%s: %w", archive, err)
		}
		if err := writeFile(filepath.Join(folder, filepath.Base(header.Name)), os.FileMode(header.Mode), programs); err != nil {
			return folder, err
		}
	}
	return folder, errors.Join(ctx.Err(), os.Symlink(self, filepath.Join(folder, detector)))
}

func writeFile(path string, mode os.FileMode, content io.Reader) error {
	file, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, mode)
	if err != nil {
		return err
	}
	_, err = io.Copy(file, content)
	return errors.Join(err, file.Close())
}
