package main

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"os"
	"time"
)

// file is a file of an archive.
type file struct {
	name       string
	executable bool
	content    []byte
}

func (f file) mode() os.FileMode {
	if f.executable {
		return 0o755
	}
	return 0o644
}

// packTar writes files, of root and of one time, as a compressed tar archive.
func packTar(path string, files []file, epoch time.Time) error {
	var packed bytes.Buffer
	compressed := gzip.NewWriter(&packed)
	w := tar.NewWriter(compressed)
	for _, f := range files {
		if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: f.name, Mode: int64(f.mode()), Size: int64(len(f.content)), ModTime: epoch}); err != nil {
			return err
		}
		if _, err := w.Write(f.content); err != nil {
			return err
		}
	}
	if err := errors.Join(w.Close(), compressed.Close()); err != nil {
		return err
	}
	return os.WriteFile(path, packed.Bytes(), 0o644)
}

// packZip writes files, of one time, as a zip archive.
func packZip(path string, files []file, epoch time.Time) error {
	var packed bytes.Buffer
	w := zip.NewWriter(&packed)
	for _, f := range files {
		header := &zip.FileHeader{Name: f.name, Method: zip.Deflate, Modified: epoch}
		header.SetMode(f.mode())
		entry, err := w.CreateHeader(header)
		if err != nil {
			return err
		}
		if _, err := entry.Write(f.content); err != nil {
			return err
		}
	}
	if err := w.Close(); err != nil {
		return err
	}
	return os.WriteFile(path, packed.Bytes(), 0o644)
}

// repack copies a compressed tar archive and replaces the times of its files, which helm takes from the clock.
func repack(from, to string, epoch time.Time) error {
	files, err := unpackTar(from)
	if err != nil {
		return err
	}
	return packTar(to, files, epoch)
}

// unpackTar reads the files of a compressed tar archive.
func unpackTar(path string) ([]file, error) {
	packed, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer packed.Close()
	uncompressed, err := gzip.NewReader(packed)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	var files []file
	for r := tar.NewReader(uncompressed); ; {
		header, err := r.Next()
		if errors.Is(err, io.EOF) {
			return files, nil
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		content, err := io.ReadAll(r)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		files = append(files, file{name: header.Name, executable: header.Mode&0o100 != 0, content: content})
	}
}
