// Install copies the plugins and monitors of its image into a volume that another container has at /opt/pitcrew.
//
//	/install DIR         as an init container of the Node Problem Detector's pod
//	/install -stay DIR   then waits for a signal to end: the only container of a DaemonSet that fills a hostPath
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
)

func main() {
	source := flag.String("source", "/opt/pitcrew", "`folder` with what is installed")
	stay := flag.Bool("stay", false, "wait for SIGTERM after the installation")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(*source, flag.Args())
	if err == nil && *stay {
		<-ctx.Done()
	}
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "install:", err)
		os.Exit(1)
	}
}

func run(source string, args []string) error {
	if len(args) != 1 {
		return errors.New("name one folder to install into")
	}
	files, err := install(source, args[0])
	if err != nil {
		return err
	}
	fmt.Printf("installed %d files in %s\n", files, args[0])
	return nil
}

// install copies the tree below source and returns how many files it holds. What else is in target stays: a Node
// Problem Detector that starts with an older configuration must still find the plugins that it names.
func install(source, target string) (files int, err error) {
	err = filepath.WalkDir(source, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		relative, err := filepath.Rel(source, path)
		if err != nil {
			return err
		}
		to := filepath.Join(target, relative)
		if entry.IsDir() {
			return os.MkdirAll(to, 0o755)
		}
		files++
		return replace(path, to)
	})
	return files, err
}

// replace replaces a file by a copy of another in one step: a program that is started meanwhile is the old
// file, never a part of the new one.
func replace(from, to string) error {
	info, err := os.Stat(from)
	if err != nil {
		return err
	}
	content, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	temporary, err := os.CreateTemp(filepath.Dir(to), "."+filepath.Base(to)+".*")
	if err != nil {
		return err
	}
	_, err = temporary.Write(content)
	err = errors.Join(err, temporary.Chmod(info.Mode().Perm()), temporary.Sync(), temporary.Close())
	if err == nil {
		err = os.Rename(temporary.Name(), to)
	}
	if err != nil {
		return errors.Join(fmt.Errorf("install %s: %w", to, err), os.Remove(temporary.Name()))
	}
	return nil
}
