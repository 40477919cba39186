// Command old-scheduler reads configuration files with the code of an old
// kube-scheduler and shows what that scheduler makes of them: the plugins of
// every profile at every extension point, with weights, and their arguments; and
// how these plugins decide about a pod.
//
// It reads one JSON question per line from standard input and writes one JSON
// answer per line to standard output, in the same order:
//
//	{"kind":"config","text":"apiVersion: ..."}   a KubeSchedulerConfiguration
//	{"kind":"policy","text":"{...}"}             a Policy (up to 1.22)
//	{"kind":"points"}                            the extension points of all in-tree plugins
//	{"kind":"decide","text":"...","objects":[...],"pod":"default/web"}   what the plugins say about every node
//
// A file that the scheduler rejects is answered with {"errors":[...]}.
//
// The three modules next to each other are three versions of Kubernetes: they
// share all files but scheduler.go and framework.go, and 1.22 and 1.25 also
// share configuration.go.
package main

import (
	"bufio"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime/debug"
	"strings"
)

// answer is the answer to a question, or {"errors": [...]}.
type answer map[string]any

// The old schedulers end the process on some errors. Therefore questions are
// answered by a child process, which is started again when it has ended.
func main() {
	isChild := flag.Bool("child", false, "answer the questions in this process")
	flag.Int("workers", 1, "no effect: one question is answered after the other")
	flag.Parse()
	quietLog()
	serve := supervise
	if *isChild {
		serve = answerLines
	}
	if err := serve(os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "old-scheduler:", err)
		os.Exit(1)
	}
}

// child is a process that answers questions.
type child struct {
	command *exec.Cmd
	stdin   io.WriteCloser
	stdout  *bufio.Reader
	stderr  strings.Builder
}

func startChild() (*child, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	c := &child{command: exec.Command(self, "-child")}
	c.command.Stderr = &c.stderr
	if c.stdin, err = c.command.StdinPipe(); err != nil {
		return nil, err
	}
	stdout, err := c.command.StdoutPipe()
	if err != nil {
		return nil, err
	}
	c.stdout = bufio.NewReader(stdout)
	return c, c.command.Start()
}

// ask returns the answer, or an error if the process has ended.
func (c *child) ask(line []byte) ([]byte, error) {
	if _, err := c.stdin.Write(append(line, '\n')); err != nil {
		return nil, err
	}
	return c.stdout.ReadBytes('\n')
}

func (c *child) end() string {
	c.stdin.Close()
	err := c.command.Wait()
	reason, _, _ := strings.Cut(c.stderr.String(), "\n")
	return fmt.Sprintf("the scheduler ended (%v): %s", err, reason)
}

func supervise(in io.Reader, out io.Writer) error {
	var c *child
	lines := bufio.NewReader(in)
	for {
		line, err := lines.ReadBytes('\n')
		if err == io.EOF && len(line) == 0 {
			break
		}
		if err != nil && err != io.EOF {
			return err
		}
		if c == nil {
			if c, err = startChild(); err != nil {
				return err
			}
		}
		result, err := c.ask([]byte(strings.TrimSuffix(string(line), "\n")))
		if err != nil {
			result, err = json.Marshal(answer{"errors": []string{c.end()}})
			if err != nil {
				return err
			}
			result = append(result, '\n')
			c = nil
		}
		if _, err := out.Write(result); err != nil {
			return err
		}
	}
	if c != nil {
		c.end()
	}
	return nil
}

func answerLines(in io.Reader, out io.Writer) error {
	lines := bufio.NewReader(in)
	for {
		line, err := lines.ReadBytes('\n')
		if err == io.EOF && len(line) == 0 {
			return nil
		}
		if err != nil && err != io.EOF {
			return err
		}
		result, err := json.Marshal(answerLine(line))
		if err != nil {
			return err
		}
		if _, err := out.Write(append(result, '\n')); err != nil {
			return err
		}
	}
}

func answerLine(line []byte) (result answer) {
	defer func() {
		if reason := recover(); reason != nil {
			result = answer{
				"errors": []string{fmt.Sprintf("panic: %v", reason)},
				"stack":  string(debug.Stack()),
			}
		}
	}()
	var q question
	err := json.Unmarshal(line, &q)
	if err == nil {
		switch q.Kind {
		case "config":
			result, err = readConfiguration([]byte(q.Text))
		case "policy":
			result, err = readPolicy([]byte(q.Text))
		case "points":
			result, err = extensionPoints()
		case "decide":
			result, err = decide(&q)
		default:
			err = fmt.Errorf("unknown kind of question %q", q.Kind)
		}
	}
	if err != nil {
		return answer{"errors": []string{err.Error()}}
	}
	return result
}
