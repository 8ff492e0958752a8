package main

import (
	"fmt"
	"io"

	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/kyaml/filesys"
)

// kustomize prints the manifests that a folder's kustomization.yaml makes, as "kubectl kustomize" does.
func kustomize(arguments []string, output io.Writer) error {
	if len(arguments) != 1 {
		return fmt.Errorf("usage: dibs-kube kustomize DIR")
	}
	made, err := krusty.MakeKustomizer(krusty.MakeDefaultOptions()).Run(filesys.MakeFsOnDisk(), arguments[0])
	if err != nil {
		return err
	}
	text, err := made.AsYaml()
	if err != nil {
		return err
	}
	_, err = output.Write(text)
	return err
}
